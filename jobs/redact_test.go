package jobs

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

func TestRedactorReplacesExactlyTheValues(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]Secret{
		{"${A}", "alpha-secret"}, {"${B}", "s3c/r3t+ 'x' <é>"}, {"${SHORT}", "abc"}, {"${EMPTY}", ""},
		{"${file:/k}", "-----BEGIN KEY-----\r\n  MIIEpAIBAAKCAQEA\nab\n-----END KEY-----"}, {"${PADDED}", " padded-value "},
	})
	const b = "s3c/r3t+ 'x' <é>"
	quoted, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                           "",
		"nothing here, abc, ab":      "nothing here, abc, ab",
		"alpha-secret":               "${A}",
		"alpha-secretalpha-secret":   "${A}${A}",
		"-alpha-secre-alpha-secret-": "-alpha-secre-${A}-",
		"+ curl -H 'Bearer " + strings.ReplaceAll(b, "'", `'\''`) + "'":     "+ curl -H 'Bearer ${B}'",
		"+ curl -H 'Bearer " + strings.ReplaceAll(b, "'", `'"'"'`) + "'":    "+ curl -H 'Bearer ${B}'",
		`Get "https://h/?k=` + url.QueryEscape(b) + `": refused`:            `Get "https://h/?k=${B}": refused`,
		"https://h/" + url.PathEscape(b) + "/x":                             "https://h/${B}/x",
		"https://h/" + strings.ToLower(url.PathEscape(b)) + "/x":            "https://h/${B}/x",
		"https://" + url.UserPassword("u", b).String() + "@h/":              "https://u:${B}@h/",
		`{"token":` + string(quoted) + `}`:                                  `{"token":"${B}"}`,
		fmt.Sprintf("cannot start %q", b):                                   `cannot start "${B}"`,
		"<td>s3c/r3t+ &#39;x&#39; &lt;é&gt;</td>":                           "<td>${B}</td>",
		base64.StdEncoding.EncodeToString([]byte(b)):                        "${B}",
		"1 MIIEpAIBAAKCAQEA 2":                                              "1 ${file:/k} 2",
		"-----BEGIN KEY-----\r\n  MIIEpAIBAAKCAQEA\nab\n-----END KEY-----.": "${file:/k}.",
		"-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\n":                           "${file:/k}\n${file:/k}\n",
		"x:padded-value.":    "x:${PADDED}.",
		"ends with alpha-se": "ends with ${A}",
		"ends with alp":      "ends with alp",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestRedactorFindsBasicAuthenticationAtEachOffset(t *testing.T) {
	t.Parallel()
	const secret = "pa55w0rd?>~"
	r := NewRedactor([]Secret{{"${P}", secret}})
	for _, before := range []string{"", "u", "us", "use", "user:"} {
		for _, after := range []string{"", "x", "xy", "xyz"} {
			for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
				text := encoding.EncodeToString([]byte(before + secret + after))
				got := r.Text("Authorization: Basic " + text)
				if !strings.Contains(got, "${P}") || len(got)-len("Authorization: Basic ${P}") > (len(before)+len(after)+2)*4/3+4 {
					t.Errorf("%q %q: got %s of %s", before, after, got, text)
				}
				if before == "" && after == "" && got != "Authorization: Basic ${P}" {
					t.Errorf("got %s, want all of it replaced", got)
				}
			}
		}
	}
}

// If two secrets overlap, every byte of both is left out.
func TestRedactorLeavesOutOverlappingSecrets(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]Secret{{"${A}", "abcdef"}, {"${B}", "defghijk"}, {"${C}", "cdef"}, {"${D}", "abcdefgh"}})
	for text, want := range map[string]string{
		"-abcdefghijk-": "-${D}${B}-",
		"-abcdef-":      "-${A}-",
		"-cdefghijk-":   "-${C}${B}-",
		"-abcdefabcd-":  "-${A}abcd-",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestRedactorWithoutSecretsChangesNothing(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*Redactor{"nil": nil, "none": NewRedactor(nil), "zero": {}, "short": NewRedactor([]Secret{{"${A}", "abc"}})} {
		var b bytes.Buffer
		w := r.Writer(&b)
		if n, err := w.Write([]byte("abc abcd")); n != 8 || err != nil || b.String() != "abc abcd" || r.Text("abc") != "abc" || w.Close() != nil {
			t.Errorf("%s: got %d, %v, %q", name, n, err, b.String())
		}
	}
}

// slowly redacts a text by searching for each form at each position.
func slowly(secrets []Secret, text string) string {
	var forms []form
	for _, s := range secrets {
		for _, part := range partsOf(s.Value) {
			for _, f := range formsOf(part) {
				if len(f) >= LeastRedacted {
					forms = append(forms, form{f, s.Reference})
				}
			}
		}
	}
	var out strings.Builder
	done := 0
	for i := range len(text) {
		var best form
		for _, f := range forms {
			rest := text[i:]
			if cut := min(len(rest), len(f.text)); cut >= LeastRedacted && rest[:cut] == f.text[:cut] && cut > len(best.text) {
				best = form{f.text[:cut], f.reference}
			}
		}
		if end := i + len(best.text); best.text != "" && end > done {
			out.WriteString(best.reference)
			done = end
		}
		if i >= done {
			out.WriteByte(text[i])
		}
	}
	return out.String()
}

func TestRedactingWriterFindsSecretsOverAnyWrites(t *testing.T) {
	t.Parallel()
	// An alphabet of few letters makes prefixes, repetitions and overlaps frequent. All secrets
	// share one reference, because either may be named for a form that two secrets share.
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		word := func(n int) string {
			var b strings.Builder
			for range n {
				b.WriteByte("ab'"[random.IntN(3)])
			}
			return b.String()
		}
		var secrets []Secret
		for range 1 + random.IntN(3) {
			secrets = append(secrets, Secret{"*", word(4 + random.IntN(8))})
		}
		text := word(random.IntN(60))
		for range random.IntN(4) {
			text += secrets[random.IntN(len(secrets))].Value + word(random.IntN(6))
		}
		r := NewRedactor(secrets)
		want := slowly(secrets, text)
		var got bytes.Buffer
		w := r.Writer(&got)
		for rest := text; rest != ""; {
			n := 1 + random.IntN(len(rest))
			if random.IntN(2) == 0 {
				n = 1
			}
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got.String() != want || r.Text(text) != want {
			t.Fatalf("seed %d, %q without %q: got %q by writes and %q at once, want %q", seed, text, values(secrets), got.String(), r.Text(text), want)
		}
	}
}

func values(secrets []Secret) (list []string) {
	for _, s := range secrets {
		list = append(list, s.Value)
	}
	return list
}

// Output that is not part of a secret is not delayed.
func TestRedactingWriterHoldsBackOnlyPossibleSecrets(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := NewRedactor([]Secret{{"${A}", "hunter2"}}).Writer(&b)
	for _, step := range []struct{ write, passed string }{
		{"one two\n", "one two\n"},
		{"hunt", "one two\n"},
		{"ing\nhunter", "one two\nhunting\n"},
		{"2", "one two\nhunting\n${A}"},
		{".", "one two\nhunting\n${A}."},
	} {
		if _, err := w.Write([]byte(step.write)); err != nil || b.String() != step.passed {
			t.Errorf("after %q: got %q, %v, want %q", step.write, b.String(), err, step.passed)
		}
	}
}

// A tail that is cut in the middle of a secret reveals neither part of it.
func TestRedactedTailNeverShowsPartOfASecret(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-5f0c81"
	for _, size := range []int{1, 5, 14, 20, 23, 27, 40} {
		for at := 1; at < len(secret); at++ {
			tail := NewTail(size)
			w := NewRedactor([]Secret{{"${S}", secret}}).Writer(tail)
			for _, part := range []string{"x" + secret[:at], secret[at:] + strings.Repeat("-", 20) + secret[:at], secret[at:] + "y"} {
				_, _ = w.Write([]byte(part))
			}
			_ = w.Close()
			got := tail.String()
			for i := range len(secret) - 2 {
				if strings.Contains(got, secret[i:i+3]) {
					t.Fatalf("a tail of %d, split at %d: got %q", size, at, got)
				}
			}
		}
	}
}

func TestRedactingWriterReturnsTheErrorBehindIt(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	w := NewRedactor([]Secret{{"${A}", "hunter2"}}).Writer(failing{full})
	if _, err := w.Write([]byte("x")); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestASecretPrintsAsItsReference(t *testing.T) {
	t.Parallel()
	s := Secret{"${A}", "hunter2"}
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "secret", s)
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s", s, s, s, s), fmt.Sprint([]Secret{s}), b.String()} {
		if strings.Contains(text, "hunter2") || !strings.Contains(text, "${A}") {
			t.Errorf("got %s", text)
		}
	}
}
