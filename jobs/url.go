package jobs

import (
	"regexp"
	"slices"
	"strings"
)

// Hidden takes the place of a secret.
const Hidden = "(hidden)"

// SafeURL returns a URL that can be shown, logged and quoted in an error. "(hidden)" replaces the
// user and password, the values of the query, and the fragment, because any of them may be a
// secret. The parameters of a Redis URL that are not secret (db, master) remain. So does a part
// that consists only of ${...}, which are names of secrets. Text that is not a URL remains
// unchanged.
func SafeURL(text string) string {
	for _, s := range slices.Backward(URLSecrets(text)) {
		text = text[:s.From] + Hidden + text[s.To:]
	}
	return text
}

// Span is a range of bytes in a text.
type Span struct{ From, To int }

var (
	numericPort  = regexp.MustCompile(`^(?:[^:]*|\[[^\]]*\])(?::[0-9]*)?$`)
	plainOptions = []string{"db", "master"}
)

// URLSecrets returns the spans of a URL that [SafeURL] hides, in order.
func URLSecrets(text string) []Span {
	// A ${...} may contain any of the characters that separate the parts of a URL. No URL contains
	// a NUL.
	plain := blank(text)
	scheme, rest, ok := cutScheme(plain)
	if !ok {
		return nil
	}
	web := isWeb(scheme)
	var spans []Span
	// A part with nothing but ${...} is not a secret. The colon separates a user from a password.
	add := func(from, to int) {
		if strings.Trim(plain[from:to], "\x00:") != "" {
			spans = append(spans, Span{from, to})
		}
	}
	at := len(scheme) + len("://")
	if user := userEnd(scheme, rest); user >= 0 {
		add(at, at+user)
		rest, at = rest[user+1:], at+user+1
	}
	end := strings.IndexByte(rest, '#')
	if end < 0 || !web {
		end = len(rest)
	}
	if query := strings.IndexByte(rest[:end], '?'); query >= 0 {
		from := at + query + 1
		for pair := range strings.SplitSeq(rest[query+1:end], "&") {
			key, _, assigned := strings.Cut(pair, "=")
			switch {
			case !assigned:
				add(from, from+len(pair))
			case web || !slices.Contains(plainOptions, key):
				add(from+len(key)+1, from+len(pair))
			}
			from += len(pair) + 1
		}
	}
	if end < len(rest) {
		add(at+end+1, at+len(rest))
	}
	return spans
}

// PasswordIsReplaced reports whether a URL has a password that consists only of ${...}.
func PasswordIsReplaced(text string) bool {
	scheme, rest, ok := cutScheme(blank(text))
	if !ok {
		return false
	}
	_, password, _ := strings.Cut(rest[:max(userEnd(scheme, rest), 0)], ":")
	return password != "" && strings.Trim(password, "\x00") == ""
}

// cutScheme splits a URL at its ://. It returns false for a text that is not a URL.
func cutScheme(url string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(url, "://")
	return scheme, rest, ok && !strings.ContainsAny(scheme, " /?#@")
}

func isWeb(scheme string) bool { return scheme == "http" || scheme == "https" }

// userEnd returns the position of the @ after the user and password of a URL without its scheme, or
// -1 if the URL has neither.
func userEnd(scheme, rest string) int {
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	user := strings.LastIndexByte(authority, '@')
	if !isWeb(scheme) || user < 0 && !numericPort.MatchString(authority) {
		// No host has such a port: an unescaped password continues after a / or a ?.
		user = strings.LastIndexByte(rest, '@')
	}
	return user
}
