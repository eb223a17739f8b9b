package jobs

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"html"
	"io"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Secret is a value that replaced a ${...} of a definition. It prints as that ${...}.
type Secret struct {
	Reference string // as written: ${TOKEN} or ${file:/run/secrets/token}
	Value     string
}

// String returns the reference, so that formatting a Secret does not reveal it.
func (s Secret) String() string { return s.Reference }

// GoString keeps the value out of %#v.
func (s Secret) GoString() string { return strconv.Quote(s.Reference) }

// LogValue keeps the value out of logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.Reference) }

// LeastRedacted is the length in bytes from which on a value is redacted. A shorter value appears inside ordinary words,
// so that redacting it would spoil the output and hide nothing: three bytes can be guessed.
const LeastRedacted = 4

// Redactor replaces secrets in texts by the references that they came from: "Bearer hunter2" becomes
// "Bearer ${TOKEN}". It knows exact values only and guesses nothing. For each value it replaces
//
//   - the value, and the value without the blanks around it;
//   - each line of a value of several lines, without the blanks around it;
//   - each of these as it appears inside a URL (query, path, user information), a JSON or Go string, HTML, a
//     single-quoted word of a shell (set -x) and base64 at any offset (basic authentication), the latter on one line.
//
// Forms shorter than [LeastRedacted] stay. Other transformations of a value (reversed, hashed, cut into pieces,
// encoded twice) stay, too.
//
// The zero value and nil redact nothing. A Redactor is safe for concurrent use.
type Redactor struct {
	forms  map[uint32][]form // by their first LeastRedacted bytes, the longest first
	begins map[string]bool   // the beginnings of forms that are shorter than that
	first  [256]bool         // the first bytes of forms
}

// form is one way in which a secret may appear.
type form struct {
	text      string
	reference string
}

// NewRedactor returns a redactor for these secrets; nil, which redacts nothing, for none.
func NewRedactor(secrets []Secret) *Redactor {
	if len(secrets) == 0 {
		return nil
	}
	r := &Redactor{forms: make(map[uint32][]form), begins: make(map[string]bool)}
	known := make(map[string]bool)
	for _, secret := range secrets {
		for _, part := range partsOf(secret.Value) {
			for _, text := range formsOf(part) {
				if len(text) < LeastRedacted || known[text] {
					continue
				}
				known[text] = true
				r.add(form{text, secret.Reference})
			}
		}
	}
	for _, forms := range r.forms {
		slices.SortStableFunc(forms, func(a, b form) int { return cmp.Compare(len(b.text), len(a.text)) })
	}
	return r
}

func (r *Redactor) add(f form) {
	key := binary.BigEndian.Uint32([]byte(f.text))
	r.forms[key] = append(r.forms[key], f)
	r.first[f.text[0]] = true
	for n := 1; n < LeastRedacted; n++ {
		r.begins[f.text[:n]] = true
	}
}

// partsOf returns a value and what of it may appear alone.
func partsOf(value string) []string {
	parts := []string{value, strings.TrimSpace(value)}
	if strings.ContainsAny(value, "\r\n") {
		for line := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == '\r' || r == '\n' }) {
			parts = append(parts, strings.TrimSpace(line))
		}
	}
	return parts
}

// percentByte is one escaped byte of a URL.
var percentByte = regexp.MustCompile("%[0-9A-F]{2}")

// formsOf returns a text and its encodings. Some are the same; some are too short to be replaced.
func formsOf(text string) []string {
	if len(text) < LeastRedacted {
		return nil
	}
	user := url.UserPassword("", text).String()[1:] // behind the colon
	forms := []string{text}
	for _, escaped := range []string{url.QueryEscape(text), url.PathEscape(text), user} {
		forms = append(forms, escaped, percentByte.ReplaceAllStringFunc(escaped, strings.ToLower))
	}
	for _, escapeHTML := range []bool{false, true} {
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(escapeHTML)
		if encoder.Encode(text) == nil { // it fails for no string
			forms = append(forms, withoutQuotes(strings.TrimSuffix(b.String(), "\n")))
		}
	}
	forms = append(forms, withoutQuotes(strconv.Quote(text)), html.EscapeString(text))
	for _, quote := range []string{`'\''`, `'"'"'`} { // bash and dash
		forms = append(forms, strings.ReplaceAll(text, "'", quote))
	}
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for before := range 3 { // how many bytes of something else share the first group
			whole := encoding.EncodeToString(slices.Concat(make([]byte, before), []byte(text)))
			from, to := (before*8+5)/6, (before+len(text))*8/6 // the characters that depend on the text alone
			forms = append(forms, whole[from:], strings.TrimRight(whole[from:], "="), whole[from:to])
		}
	}
	return forms
}

func withoutQuotes(s string) string { return s[1 : len(s)-1] }

// Text returns s without secrets. A secret that the end of s cuts short is replaced as well, if at least
// [LeastRedacted] bytes of it are there.
func (r *Redactor) Text(s string) string {
	if r == nil || len(r.forms) == 0 {
		return s
	}
	var scan scanner
	return string(scan.next(r, []byte(s), true))
}

// Writer returns a writer that passes on to w what is written to it, without secrets, also where a secret comes in
// several writes. It holds back the end of what was written while that may be the beginning of a secret, until more
// is written or until it is closed; nothing else is delayed.
func (r *Redactor) Writer(w io.Writer) *RedactingWriter { return &RedactingWriter{to: w, redactor: r} }

// RedactingWriter is a writer without secrets; see [Redactor.Writer]. It is safe for concurrent use, if only it writes to
// the writer behind it.
type RedactingWriter struct {
	to       io.Writer
	redactor *Redactor

	mu   sync.Mutex // guards scan, and orders what is passed on
	scan scanner
}

// Write takes p. Its error is that of the writer behind it; then parts of p may have been passed on.
func (w *RedactingWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.pass(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close passes on what was held back; if at least [LeastRedacted] bytes of it are the beginning of a secret, these are
// replaced. It does not close the writer behind it. More may be written afterward.
func (w *RedactingWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pass(nil, true)
}

func (w *RedactingWriter) pass(p []byte, last bool) error {
	if w.redactor != nil && len(w.redactor.forms) > 0 {
		p = w.scan.next(w.redactor, p, last)
	}
	if len(p) == 0 {
		return nil
	}
	_, err := w.to.Write(p)
	return err
}

// scanner is what is known of a stream between two of its parts.
type scanner struct {
	held    []byte // may be the beginning of a secret
	covered int    // so many bytes of held belong to a secret whose reference was passed on already
}

// next returns what can be passed on when more of a stream has come. Secrets may overlap, as two that share some
// bytes: every byte of every secret is left out, and each secret's reference replaces its first byte that is left out.
func (s *scanner) next(r *Redactor, more []byte, last bool) []byte {
	text := more
	if len(s.held) > 0 {
		text = append(s.held, more...)
	}
	var out []byte
	done, i := s.covered, 0 // what is before done was passed on, or belongs to a secret
	for ; i < len(text); i++ {
		if !r.first[text[i]] {
			continue
		}
		found, open := r.at(text[i:])
		if open {
			if !last {
				break
			}
			if rest := len(text) - i; rest >= LeastRedacted {
				found.text = found.text[:rest]
			}
		}
		if end := i + len(found.text); end > done {
			if i > done {
				out = append(out, text[done:i]...)
			}
			out = append(out, found.reference...)
			done = end
		}
	}
	if i > done {
		out = append(out, text[done:i]...)
		done = i
	}
	s.held = append([]byte(nil), text[i:]...) // a copy: text may belong to the caller
	s.covered = done - i
	return out
}

// at returns the longest form that text begins with. If open, more text may make it a longer one: then the form that
// it would be is returned, if at least LeastRedacted bytes of it are there.
func (r *Redactor) at(text []byte) (found form, open bool) {
	if len(text) < LeastRedacted {
		return form{}, r.begins[string(text)]
	}
	for _, f := range r.forms[binary.BigEndian.Uint32(text)] {
		switch n := len(f.text); {
		case n > len(text) && strings.HasPrefix(f.text, string(text)):
			return f, true
		case n <= len(text) && string(text[:n]) == f.text:
			return f, false
		}
	}
	return form{}, false
}
