package ledger_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// TestLedgerScriptsUseOnlyWhatTheSpaceOffers checks the arrow between the scripts of the ledger and
// those of the space: a script of the ledger names no key of the space, and none of its functions
// and variables but those that its package doc offers. It offers no name that no script uses.
func TestLedgerScriptsUseOnlyWhatTheSpaceOffers(t *testing.T) {
	t.Parallel()
	offered, own := spaceNames(t)
	used := make(map[string]bool)
	scripts := luaFiles(t, "scripts")
	for path, source := range scripts {
		names := namesIn(source)
		maps.Copy(used, names)
		for _, name := range notOffered(names, offered, own) {
			t.Errorf("%s uses %s, which the space does not offer", path, name)
		}
		for _, local := range regexp.MustCompile(`\blocal (?:function )?(\w[\w, ]*)`).FindAllStringSubmatch(withoutTexts(source), -1) {
			for name := range strings.SplitSeq(strings.TrimSpace(local[1]), ", ") {
				if offered[name] {
					t.Errorf("%s declares %s, which hides what the space offers under that name", path, name)
				}
			}
		}
	}
	for name := range offered {
		if !used[name] {
			t.Errorf("the space offers %s, which no script of the ledger uses", name)
		}
		if !own[name] && name != "space" && name != "S.offers" && name != "S.more" {
			t.Errorf("the space offers %s, which it does not declare", name)
		}
	}

	claim := scripts["scripts/claim.lua"]
	for planted, want := range map[string]string{
		"call('HGET', OWN, 'a')":           "OWN",
		"call('HGET', KEYS[2], 'a')":       "KEYS[2]",
		"local hold = held(hid)":           "held",
		"S.store(wid, {})":                 "S.store",
		"return space().drop(wid), held":   "held",
		"local wait = space().wait(wid)":   "S.wait",
		"return 'a'..identity() -- 'held'": "identity",
	} {
		if got := notOffered(namesIn(claim+planted), offered, own); !slices.Equal(got, []string{want}) {
			t.Errorf("with %s: got %q, want %q", planted, got, want)
		}
	}
}

// spaceNames returns the names that the space offers to scripts of other packages, and all names
// that a script can reach in its libraries.
func spaceNames(t *testing.T) (offered, own map[string]bool) {
	t.Helper()
	doc, err := os.ReadFile("../../locks/space/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(doc), "// # Scripts of other packages\n")
	list, _, _ = strings.Cut(list, "// # ")
	offered, own = make(map[string]bool), make(map[string]bool)
	for _, item := range regexp.MustCompile(`(?m)^//   - ([\w., ]+):`).FindAllStringSubmatch(list, -1) {
		for name := range strings.SplitSeq(item[1], ", ") {
			offered[name] = true
		}
	}
	if len(offered) == 0 {
		t.Fatal("the doc of package space offers nothing")
	}
	declaration := regexp.MustCompile(`(?m)^(?:local (?:function )?(\w[\w, ]*)|function (S\.\w+))`)
	for path, source := range luaFiles(t, "../../locks/space/scripts/lib", "../../locks/space/scripts/slow") {
		for _, match := range declaration.FindAllStringSubmatch(source, -1) {
			if strings.Contains(path, "/slow/") && match[2] == "" {
				continue // only the functions of S can be reached
			}
			for name := range strings.SplitSeq(match[1]+match[2], ", ") {
				own[strings.TrimSpace(name)] = true
			}
		}
	}
	for _, key := range space.KeysOf("n") { // the linker declares the keys, and three functions
		own[strings.ToUpper(strings.TrimPrefix(key, "{n}:"))] = true
	}
	for _, name := range []string{"call", "sub", "format"} {
		own[name] = true
	}
	return offered, own
}

// luaFiles returns the Lua files below folders, by their paths.
func luaFiles(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, folder := range folders {
		for _, pattern := range []string{"*.lua", "*/*.lua"} {
			paths, err := filepath.Glob(filepath.Join(folder, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				source, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				files[path] = string(source)
			}
		}
	}
	return files
}

// notOffered returns, sorted, those names that are keys of the space, or its own names that it does
// not offer.
func notOffered(names, offered, own map[string]bool) []string {
	var misused []string
	for name := range names {
		inside := own[name] || strings.HasPrefix(name, "S.") || strings.HasPrefix(name, "KEYS[")
		if inside && !offered[name] {
			misused = append(misused, name)
		}
	}
	return slices.Sorted(slices.Values(misused))
}

// namesIn returns the names in a script: without the names of fields, except those of S, and with
// the keys of the space by their numbers.
func namesIn(source string) map[string]bool {
	source = strings.NewReplacer("space()", "space.S", "..", " ").Replace(withoutTexts(source))
	names := make(map[string]bool)
	for _, name := range regexp.MustCompile(`\bKEYS\[[1-8]\]|\.?\b[A-Za-z_]\w*`).FindAllString(source, -1) {
		names[name] = true
	}
	for _, name := range regexp.MustCompile(`\bS\.\w+`).FindAllString(source, -1) {
		names[name] = true
	}
	return names
}

// withoutTexts returns a script without its comments and strings.
func withoutTexts(source string) string {
	return regexp.MustCompile(`--[^\n]*|'(?:[^'\\]|\\.)*'`).ReplaceAllString(source, "")
}

// TestScriptsAreCalledByTheirNames finds a name that no script has, before the call panics, and a
// script that nothing calls.
func TestScriptsAreCalledByTheirNames(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	called := make(map[string]bool)
	call := regexp.MustCompile(`\b(?:run|runAct|runChild|runAll|runKeyed|runLists|overlap|calls)\((?:ctx, )?"([^"]+)"`)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			called[m[1]] = true
		}
	}
	want := slices.Sorted(maps.Values(ledger.ScriptNames()))
	if got := slices.Sorted(maps.Keys(called)); !slices.Equal(got, want) {
		t.Errorf("called are %q, want the scripts %q", got, want)
	}
}
