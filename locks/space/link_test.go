package space

import (
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

func TestScriptContainsOnlyWhatItUses(t *testing.T) {
	t.Parallel()
	const library = `-- about
local a, b = 1, 2
local function first() return a end

-- first is not named by what follows
local function second(x)
  -- it says first
  return x
end
local function third()
  return second(b)
end
local S = {third = 3}
`
	for script, want := range map[string]string{
		"return 1":              "",
		"return first()":        "local a, b = 1, 2\nlocal function first() return a end\n",
		"return second(afirst)": "local function second(x)\n  return x\nend\n",
		"return third()":        "local a, b = 1, 2\nlocal function second(x)\n  return x\nend\nlocal function third()\n  return second(b)\nend\n",
		"return S":              "local a, b = 1, 2\nlocal function second(x)\n  return x\nend\nlocal function third()\n  return second(b)\nend\nlocal S = {third = 3}\n",
	} {
		if got := linked(linker{library: declarations(library)}, script); got != want+script {
			t.Errorf("%s: got\n%s\nwant\n%s", script, got, want+script)
		}
	}
}

func TestSlowPathContainsOnlyWhatTheScriptUses(t *testing.T) {
	t.Parallel()
	library := declarations("local a = 1\nlocal b = 2\nlocal free = 3\n")
	slow := declarations(`local S = {}
local free, more = {}, 1
local function drop() return S.wake() end
function S.free() return free end
function S.drop() return drop() end
function S.wake() return b end
`)
	own := declarations("local function ours(S) return S.free() end\nlocal function theirs(S) return a end\n")
	const begin, end = "local function space()\nlocal S = {}\n", "return S\nend\n"
	for script, want := range map[string]string{
		"return free":                 "local free = 3\n",
		"return other.S.free":         "",
		"S = space() S.more = drop":   begin + end,
		"return space().free()":       "local free = 3\n" + begin + "local free, more = {}, 1\nfunction S.free() return free end\n" + end,
		"S = space() return 'x'..S.a": begin + end,
		"S = space() return 'x'..S.drop": "local b = 2\n" + begin + "local function drop() return S.wake() end\n" +
			"function S.drop() return drop() end\nfunction S.wake() return b end\n" + end,
		"S = space() ours(S)": "local free = 3\n" + begin + "local free, more = {}, 1\nfunction S.free() return free end\n" + end +
			"local function ours(S) return S.free() end\n",
	} {
		if got := linked(linker{library: library, slow: slow, own: own}, script); got != want+script {
			t.Errorf("%s: got\n%s\nwant\n%s", script, got, want+script)
		}
	}
}

func linked(l linker, script string) string {
	l.taken = make(map[*declaration]bool)
	l.add(script)
	return l.text.String()
}

func TestFieldsAreNumbersInScripts(t *testing.T) {
	t.Parallel()
	const text = "return a[H_TOKEN], b[W_ITEMS], LOOK_TEXT, H_NOTHING"
	if got, want := expand(text), "return a[2], b[9], LOOK_TEXT, H_NOTHING"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestScriptsUseWhatIsDeclaredBefore compiles the scripts, because Lua takes a name that is
// declared later, or nowhere, for a global, and fails only when that line runs.
func TestScriptsUseWhatIsDeclaredBefore(t *testing.T) {
	t.Parallel()
	all := map[string]string{"all functions": Link("", "", "local S = space() return "+strings.Join(allNames(), ","))}
	for _, script := range Scripts() {
		all[string(script)] = script.Source(Format)
	}
	for name, source := range all {
		for _, global := range globals(t, name, source) {
			if !slices.Contains([]string{
				"ARGV", "KEYS", "error", "ipairs", "math", "pairs", "redis", "string", "table", "tonumber", "tostring", "type", "unpack",
			}, global) {
				t.Errorf("%s uses %s before it is declared", name, global)
			}
		}
	}
	if got := globals(t, "", "local function a() return b, redis end local b = 1 return a"); !slices.Equal(got, []string{"b", "redis"}) {
		t.Errorf("got globals %q", got)
	}
}

// allNames returns the names of all functions that the library offers.
func allNames() (names []string) {
	for _, d := range declarations(readLibrary("lib/", library...)) {
		names = append(names, d.names...)
	}
	for _, d := range declarations(readLibrary("slow/", slow...)) {
		if strings.HasPrefix(d.names[0], "S.") {
			names = append(names, d.names[0])
		}
	}
	return names
}

// globals returns the globals that a script reads or writes. It checks Redis' limits, too: each
// function has fewer than 60 upvalues.
func globals(t *testing.T, name, source string) (names []string) {
	t.Helper()
	chunk, err := parse.Parse(strings.NewReader(source), name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	main, err := lua.Compile(chunk, name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for todo := []*lua.FunctionProto{main}; len(todo) > 0; {
		f := todo[0]
		todo = append(todo[1:], f.FunctionPrototypes...)
		if f.NumUpvalues > 60 {
			t.Errorf("%s: the function in line %d uses %d names from outside, want 60 at most", name, f.LineDefined, f.NumUpvalues)
		}
		for _, instruction := range f.Code {
			if op := int(instruction >> 26); op == lua.OP_GETGLOBAL || op == lua.OP_SETGLOBAL {
				names = append(names, f.Constants[instruction&0x3ffff].String())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
