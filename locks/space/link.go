package space

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The library of the space by nouns, see scripts/lib and scripts/slow. A declaration uses only
// those before it, in this order, except that the slow path also uses what S has.
var (
	library = []string{"clock", "item", "kept", "take", "hold", "server", "meta", "page"}
	slow    = []string{
		"work", "wait", "release", "drop", "class", "nest", "park", "queue", "blocked", "grant",
		"head", "settle", "graph", "cycle", "permits", "reap", "describe", "rival",
	}
)

// Link assembles a script: its fast path, if it has one, then the guard that refuses a space with a
// format that this build does not know (see [Space.Explain]), then the script. Each of them comes
// after the functions of the space and of the caller's library that it uses and that the text does
// not have yet. Redis creates every function anew at each call of a script, used or not, and that
// takes as long as a command. So a script contains only the functions that it names, and it creates
// those of the slow path (scripts/slow) only where it calls the function space, which the linker
// makes of them.
// Without a script, the result is a fast path alone: a script that needs no guard.
//
// A library is a sequence of declarations that begin with "local", or "function S.", at the start
// of a line. A declaration may use those before it. Functions of S may use each other.
func Link(library, fast, script string) string { return linkFor(Format, library, script, fast) }

// linkFor is [Link] for a build that writes the given format. The fast paths come one after the
// other.
func linkFor(format int, own, script string, fast ...string) string {
	l := linker{
		library: declarations(prelude() + readLibrary("lib/", library...)), slow: declarations(readLibrary("slow/", slow...)),
		own: declarations(own), taken: make(map[*declaration]bool),
	}
	fmt.Fprintf(&l.text, "local FORMAT, LEAST = %d, %d\n", format, leastFormat(format))
	for _, path := range fast {
		l.add(path)
	}
	if script != "" {
		l.add(strings.Replace(withoutComments(readScript("guard")), "KEY_TYPES", keyTypes(), 1))
		l.add(script)
	}
	return l.text.String()
}

// A linker writes the text of a script.
type linker struct {
	library, slow, own []declaration
	taken              map[*declaration]bool // those in the text
	text               strings.Builder
}

// add appends a part of a script, preceded by the declarations that it uses, directly or through
// others, and that no earlier part has: of the library, of the slow path inside the function space,
// and of the caller's own library.
func (l *linker) add(part string) {
	part = expand(part)
	used := words(withoutComments(part))
	inside := map[string]bool{"S": true} // the words of the slow path, whose locals only it can use
	added := make(map[*declaration]bool)
	take := func(all []declaration, slow bool) (more bool) {
		for i := range slices.Backward(all) {
			d := &all[i]
			if l.taken[d] || !slices.ContainsFunc(d.names, func(name string) bool {
				return used[name] && (!slow || strings.HasPrefix(name, "S.")) || slow && inside[name]
			}) {
				continue
			}
			l.taken[d], added[d], more = true, true, true
			maps.Copy(used, d.words)
			if slow {
				maps.Copy(inside, d.words)
			}
		}
		return more
	}
	for more := true; more; {
		more = take(l.own, false)
		more = used["space"] && take(l.slow, true) || more
		more = take(l.library, false) || more
	}
	write := func(all []declaration) {
		for i := range all {
			if added[&all[i]] {
				l.text.WriteString(all[i].text)
			}
		}
	}
	write(l.library)
	if used["space"] && l.slow != nil {
		l.text.WriteString("local function space()\n")
		write(l.slow)
		l.text.WriteString("return S\nend\n")
	}
	write(l.own)
	l.text.WriteString(part)
}

// A declaration is one declaration of a library: its names, its text without comments, and the
// words of its text.
type declaration struct {
	names []string
	text  string
	words map[string]bool
}

var declared = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:local (?:function )?([A-Za-z_][\w, ]*)|function (S\.\w+))`)
})

// declarations splits a library. A worker links some dozens of scripts from few libraries, so each
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
		name := at[2:4]
		if name[0] < 0 {
			name = at[4:6]
		}
		text := expand(withoutComments(library[at[0]:end]))
		names := strings.FieldsFunc(library[name[0]:name[1]], func(r rune) bool { return r == ',' || r == ' ' })
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

// words returns the names in a text, and the words of the language: without comments and strings,
// and without the names of fields, except those of S, such as S.free, which can also be written as
// space().free.
func words(text string) map[string]bool {
	found := make(map[string]bool)
	for text != "" {
		switch {
		case strings.HasPrefix(text, "--"):
			_, text, _ = strings.Cut(text, "\n")
		case text[0] == '\'' || text[0] == '"':
			text = text[lengthOfString(text):]
		case isWord(text[0]):
			name, rest := cutWord(text)
			found[name] = true
			if called, is := strings.CutPrefix(rest, "()."); is && name == "space" {
				name, rest = "S", "."+called
				found[name] = true
			}
			for fields := 0; len(rest) > 1 && rest[0] == '.' && isWord(rest[1]); fields++ {
				var field string
				if field, rest = cutWord(rest[1:]); name == "S" && fields == 0 {
					found["S."+field] = true
				}
			}
			text = rest
		default:
			text = text[1:]
		}
	}
	return found
}

// lengthOfString returns the length of the string that a text begins with, with its quotes.
func lengthOfString(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case text[0]:
			return i + 1
		}
	}
	return len(text)
}

// cutWord cuts a text after the word that it begins with.
func cutWord(text string) (word, rest string) {
	n := 1
	for n < len(text) && isWord(text[n]) {
		n++
	}
	return text[:n], text[n:]
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
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
