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

// LeastRedacted is the minimum length in bytes of a redacted value. A shorter value occurs inside
// ordinary words, so redacting it would spoil the output and hide nothing: three bytes can be
// guessed.
const LeastRedacted = 4

// Redactor replaces secrets in texts by the references that they came from: "Bearer hunter2"
// becomes "Bearer ${TOKEN}". It knows only exact values and does not guess. For each value it
// replaces
//
//   - the value, with and without its surrounding blanks;
//   - each line of a multi-line value, without its surrounding blanks;
//   - each of these as it appears inside a URL (query, path, user information), a JSON or Go
//     string, HTML, a single-quoted word of a shell (set -x), and base64 at any offset (basic
//     authentication) if it is on one line.
//
// It does not replace forms shorter than [LeastRedacted], nor other transformations of a value
// (reversed, hashed, cut into pieces, encoded twice).
//
// The zero value and nil redact nothing. A Redactor is safe for concurrent use.
type Redactor struct {
	forms  map[uint32][]form // by their first LeastRedacted bytes; the longest comes first
	begins map[string]bool   // prefixes of forms, shorter than LeastRedacted
	first  [256]bool         // the first bytes of forms
}

// form is one way in which a secret may appear.
type form struct {
	text      string
	reference string
}

// NewRedactor returns a redactor for these secrets. Without secrets it returns nil, which redacts
// nothing.
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

// partsOf returns a value and its parts that may appear alone.
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

// formsOf returns a text and its encodings. Some of them may be equal, and some too short to be
// replaced.
func formsOf(text string) []string {
	if len(text) < LeastRedacted {
		return nil
	}
	user := url.UserPassword("", text).String()[1:] // after the colon
	forms := []string{text}
	for _, escaped := range []string{url.QueryEscape(text), url.PathEscape(text), user} {
		forms = append(forms, escaped, percentByte.ReplaceAllStringFunc(escaped, strings.ToLower))
	}
	for _, escapeHTML := range []bool{false, true} {
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(escapeHTML)
		if encoder.Encode(text) == nil { // it never fails for a string
			forms = append(forms, withoutQuotes(strings.TrimSuffix(b.String(), "\n")))
		}
	}
	forms = append(forms, withoutQuotes(strconv.Quote(text)), html.EscapeString(text))
	for _, quote := range []string{`'\''`, `'"'"'`} { // bash and dash
		forms = append(forms, strings.ReplaceAll(text, "'", quote))
	}
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for before := range 3 { // how many foreign bytes share the first group
			whole := encoding.EncodeToString(slices.Concat(make([]byte, before), []byte(text)))
			// the characters that depend only on the text
			from, to := (before*8+5)/6, (before+len(text))*8/6
			forms = append(forms, whole[from:], strings.TrimRight(whole[from:], "="), whole[from:to])
		}
	}
	return forms
}

func withoutQuotes(s string) string { return s[1 : len(s)-1] }

// Text returns s without secrets. It also replaces a secret that the end of s cuts short, if at
// least [LeastRedacted] bytes of the secret are in s.
func (r *Redactor) Text(s string) string {
	if r == nil || len(r.forms) == 0 {
		return s
	}
	var scan scanner
	return string(scan.next(r, []byte(s), true))
}

// Writer returns a writer that passes on to w what is written to it, without secrets. It also finds
// a secret that is split over several writes. It holds back the end of the text while that may be
// the beginning of a secret, until the next write or Close. It delays nothing else.
func (r *Redactor) Writer(w io.Writer) *RedactingWriter { return &RedactingWriter{to: w, redactor: r} }

// RedactingWriter is a writer that removes secrets. See [Redactor.Writer]. It is safe for
// concurrent use if nothing else writes to the underlying writer.
type RedactingWriter struct {
	to       io.Writer
	redactor *Redactor

	mu   sync.Mutex // guards scan and orders the writes to the underlying writer
	scan scanner
}

// Write writes p. Its error is that of the underlying writer, which may then have received parts of
// p.
func (w *RedactingWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.pass(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close passes on the text that was held back. If at least [LeastRedacted] bytes of it are the
// beginning of a secret, Close replaces them. It does not close the underlying writer. Writes after
// Close are allowed.
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

// scanner is the state between two parts of a stream.
type scanner struct {
	held []byte // may be the beginning of a secret
	// this many bytes of held belong to a secret that was already replaced
	covered int
}

// next returns the text that can be passed on when more of a stream has arrived. Secrets may
// overlap, such as two that share some bytes. Every byte of every secret is left out, and the
// reference of each secret takes the place of its first byte that was left out.
func (s *scanner) next(r *Redactor, more []byte, last bool) []byte {
	text := more
	if len(s.held) > 0 {
		text = append(s.held, more...)
	}
	var out []byte
	done, i := s.covered, 0 // bytes before done were passed on or belong to a secret
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

// at returns the longest form that text begins with. open means that more text may make it a longer
// form. In that case at returns that longer form if text has at least LeastRedacted bytes of it.
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
