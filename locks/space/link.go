package space

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Link assembles a script: the keys of the space, the guard that refuses a space with a format that
// this build does not know (see [Space.Explain]), the functions of the space and of the caller's
// library that the script uses, and then the script. Redis creates every function anew at each call
// of a script, used or not, and that takes as long as a command. So a script contains only the
// functions that it names.
//
// A library is a sequence of declarations that begin with "local" at the start of a line. A
// declaration may use those before it.
func Link(library, script string) string {
	return readScript("keys") + guardFor(Format) + link(readScript("awaited")+readScript("space")+library, script)
}

// LinkFast assembles a fast path, which precedes the result of [Link]: the function awaited and
// those of the caller's library that the fast path uses, then the fast path.
func LinkFast(library, script string) string { return link(readScript("awaited")+library, script) }

// link returns the script, preceded by the declarations of a library that it uses, directly or
// through others.
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

// A declaration is one declaration of a library: its names, its text without comments, and the
// words of its text.
type declaration struct {
	names []string
	text  string
	words map[string]bool
}

var declared = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^local (function )?([A-Za-z_][\w, ]*)`)
})

// declarations splits a library. A worker links some dozens of scripts from two libraries, so each
// library is split once.
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

// Assembled reports whether this process has assembled a script. None is assembled before main: a
// process that sends none should not spend the time.
func Assembled() bool {
	libraries.Lock()
	defer libraries.Unlock()
	return len(libraries.declarations) > 0
}

var libraries = struct {
	sync.Mutex
	declarations map[string][]declaration
}{declarations: make(map[string][]declaration)}

// words returns the names in a text, and some other words, which are harmless.
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

// withoutComments drops empty lines and lines that contain only a comment.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}
