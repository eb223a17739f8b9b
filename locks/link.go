package locks

import (
	"regexp"
	"slices"
	"strings"
)

// Link puts a script together: the keys of the space, then what the script uses of the space's functions and of a library
// of the caller's, then the script. Redis makes every function anew at each call of a script, used or not, and that takes
// as long as a command does; so a script is given no more than it names.
//
// A library is a sequence of declarations that begin with "local" at the start of a line; one may use those before it.
func Link(library, script string) string {
	return keysSource + link(spaceSource+library, script)
}

var declared = regexp.MustCompile(`(?m)^local (function )?([A-Za-z_][\w, ]*)`)

// link returns the declarations of a library that a script uses, by itself or through others, and the script.
func link(library, script string) string {
	starts := declared.FindAllStringSubmatchIndex(library, -1)
	var parts []string
	rest := script
	for i := len(starts) - 1; i >= 0; i-- {
		end := len(library)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		text := withoutComments(library[starts[i][0]:end])
		names := strings.FieldsFunc(library[starts[i][4]:starts[i][5]], func(r rune) bool { return r == ',' || r == ' ' })
		if slices.ContainsFunc(names, func(name string) bool { return uses(rest, name) }) {
			parts = append(parts, text)
			rest += text
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, "") + script
}

// uses tells whether a text has a name as a word of its own; a word too many does no harm.
func uses(text, name string) bool {
	for at := 0; ; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return false
		}
		at += i
		before, after := at == 0 || !isWord(text[at-1]), at+len(name) == len(text) || !isWord(text[at+len(name)])
		if before && after {
			return true
		}
		at += len(name)
	}
}

func isWord(b byte) bool {
	return b == '_' || '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z'
}

// withoutComments drops the lines that are nothing but a comment, and empty ones.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}
