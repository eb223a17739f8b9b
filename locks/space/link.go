package space

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The library of the space by nouns, see scripts/lib and scripts/slow. A declaration uses only
// those before it, in this order, except that the slow path also uses what S has.
var (
	library = []string{"clock", "item", "take", "hold", "server", "meta", "page"}
	slow    = []string{
		"work", "wait", "release", "drop", "class", "nest", "park", "queue", "blocked", "grant",
		"head", "settle", "graph", "cycle", "permits", "reap", "describe", "rival",
	}
)

// Link assembles a script: the keys of the space, the guard that refuses a space with a format
// that this build does not know (see [Space.Explain]), the functions of the space and of the
// caller's library that the script uses, and then the script. Redis creates every function anew at
// each call of a script, used or not, and that takes as long as a command. So a script contains
// only the functions that it names, and it creates those of the slow path (scripts/slow) only where
// it calls the function space, which the linker makes of them.
//
// A library is a sequence of declarations that begin with "local", or "function S.", at the start
// of a line. A declaration may use those before it. Functions of S may use each other.
func Link(library, script string) string {
	return linkScript(guardFor(Format), library, script)
}

// linkScript is [Link] with a guard, which may be empty.
func linkScript(guard, own, script string) string {
	return link(guard, declarations(readLibrary("lib/", library...)), declarations(readLibrary("slow/", slow...)), declarations(own), script)
}

// LinkFast assembles a fast path, which precedes the result of [Link]: the keys, the function
// awaited, and what the fast path uses of the caller's library, then the fast path.
func LinkFast(library, script string) string {
	return link("", declarations(readScript("lib/take")), nil, declarations(library), script)
}

// link returns the script, preceded by the declarations that it uses, directly or through others:
// the keys, which the guard uses too; then, behind the guard, those of a library, of the slow path
// inside the function space, and of the caller's own library.
func link(guard string, library, slow, own []declaration, script string) string {
	keys := declarations(prelude())
	script = expand(script)
	used := words(guard + withoutComments(script))
	inside := map[string]bool{"S": true} // the words of the slow path, whose locals only it can use
	taken := make(map[*declaration]bool)
	take := func(all []declaration, slow bool) (more bool) {
		for i := range slices.Backward(all) {
			d := &all[i]
			if taken[d] || !slices.ContainsFunc(d.names, func(name string) bool {
				return used[name] && (!slow || strings.HasPrefix(name, "S.")) || slow && inside[name]
			}) {
				continue
			}
			taken[d], more = true, true
			maps.Copy(used, d.words)
			if slow {
				maps.Copy(inside, d.words)
			}
		}
		return more
	}
	for more := true; more; {
		more = take(own, false)
		more = used["space"] && take(slow, true) || more
		more = take(library, false) || more
		more = take(keys, false) || more
	}
	var b strings.Builder
	write := func(all []declaration) {
		for i := range all {
			if taken[&all[i]] {
				b.WriteString(all[i].text)
			}
		}
	}
	write(keys)
	b.WriteString(guard)
	write(library)
	if used["space"] && slow != nil {
		b.WriteString("local function space()\n")
		write(slow)
		b.WriteString("return S\nend\n")
	}
	write(own)
	b.WriteString(script)
	return b.String()
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

// slowFields separates the operands of .. and turns space().free into S.free.
var slowFields = strings.NewReplacer("..", " ", "space().", "space S.")

// words returns the names in a text, and some other words, which are harmless: without the names of
// fields, except those of S, such as S.free.
func words(text string) map[string]bool {
	found := make(map[string]bool)
	for word := range strings.FieldsFuncSeq(slowFields.Replace(text), func(r rune) bool { return r != '.' && !isWord(r) }) {
		name, field, _ := strings.Cut(word, ".")
		found[name] = true
		if name == "S" {
			field, _, _ = strings.Cut(field, ".")
			found["S."+field] = true
		}
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
