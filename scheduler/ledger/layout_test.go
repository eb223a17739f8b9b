package ledger_test

import (
	"regexp"
	"testing"

	"lockstep/scheduler/ledger"
)

// TestScriptsNameFieldsThatExist expands every script. A name that no record has stays as it is,
// and Lua would take it for a global without a value.
func TestScriptsNameFieldsThatExist(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`\b[RFBC]_[A-Z]+\b`)
	unknown := func(source string) []string { return name.FindAllString(withoutTexts(ledger.Expand(source)), -1) }
	for path, source := range luaFiles(t, "scripts") {
		for _, name := range unknown(source) {
			t.Errorf("%s names %s, which no record has", path, name)
		}
	}
	if got := unknown("local a, b = run[R_STATE], run[R_STAT]"); len(got) != 1 || got[0] != "R_STAT" {
		t.Errorf("got %q, want R_STAT", got)
	}
}
