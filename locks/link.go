package locks

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Link puts a script together: the keys of the space, the guard that refuses a space whose format this build does not know
// (see [Space.Explain]), then what the script uses of the space's functions and of a library of the caller's, then the
// script. Redis makes every function anew at each call of a script, used or not, and that takes
// as long as a command does; so a script is given no more than it names.
//
// A library is a sequence of declarations that begin with "local" at the start of a line; one may use those before it.
func Link(library, script string) string {
	return readScript("keys") + guardFor(Format) + link(readScript("awaited")+readScript("space")+library, script)
}

// LinkFast puts a fast path together, which precedes what [Link] returns: the function awaited, if it uses that, then the fast
// path.
func LinkFast(script string) string { return link(readScript("awaited"), script) }

// link returns the declarations of a library that a script uses, by itself or through others, and the script.
func link(library, script string) string {
	used := words(withoutComments(script))
	all := declarations(library)
	var parts []string
	for _, d := range slices.Backward(all) {
		if slices.ContainsFunc(d.names, func(name string) bool { return used[name] }) {
			parts = append(parts, d.text)
			maps.Copy(used, d.words)
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, "") + script
}

// A declaration is one of a library: what it is called, its text without comments, and the words of its text.
type declaration struct {
	names []string
	text  string
	words map[string]bool
}

var declared = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^local (function )?([A-Za-z_][\w, ]*)`)
})

// declarations takes a library apart. A worker links some dozens of scripts of two libraries, so each library is taken
// apart once.
func declarations(library string) []declaration {
	libraries.Lock()
	defer libraries.Unlock()
	if known, ok := libraries.declarations[library]; ok {
		return known
	}
	starts := declared().FindAllStringSubmatchIndex(library, -1)
	all := make([]declaration, len(starts))
	for i, at := range starts {
		end := len(library)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		text := withoutComments(library[at[0]:end])
		names := strings.FieldsFunc(library[at[4]:at[5]], func(r rune) bool { return r == ',' || r == ' ' })
		all[i] = declaration{names: names, text: text, words: words(text)}
	}
	libraries.declarations[library] = all
	return all
}

var libraries = struct {
	sync.Mutex
	declarations map[string][]declaration
}{declarations: make(map[string][]declaration)}

// words returns the names in a text, and some words more, which do no harm.
func words(text string) map[string]bool {
	found := make(map[string]bool)
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return !isWord(r) }) {
		found[word] = true
	}
	return found
}

func isWord(r rune) bool {
	return r == '_' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
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
