package space

import "testing"

// A storedThing is a record for tests.
type storedThing struct {
	Kind  string `new:"due"`
	N     string `new:"0"`
	Name  string
	Tries string `new:"0"`
	Why   string
	Items string
}

func TestScriptsNameTheFieldsOfRecords(t *testing.T) {
	t.Parallel()
	things := RecordOf[storedThing]("T", 31)
	for text, want := range map[string]string{
		"a[T_KIND], b[T_ITEMS], LOOK_TEXT, T_NOTHING, GREAT_N": "a[1], b[6], LOOK_TEXT, T_NOTHING, GREAT_N",
		"local run = {T_NEW}": "local run = {'due', '0', '', '0', ''}",

		"T_TEXT{KIND = 'run'; N = f(n, 1); ITEMS = a}":           `'run\31' .. f(n, 1) .. '\31\0310\31\31' .. a`,
		"T_TEXT{N = n; NAME_WHY = 'x' .. y .. '}'; ITEMS = '1'}": `n .. '\31x' .. y .. '}\0311'`,
		"T_TEXT{KIND = k; ...}":                                  `k .. '\0310\31\0310\31'`,
		"T_TEXT{\n  WHY = ''; ...\n}":                            `''`,
		"T_TEXT{KIND = T_TEXT{NAME = a; WHY = b}; N = c}":        `a .. '\0310\31' .. b .. '\31' .. c`,

		"T_MATCH[[(KIND)]]":                                           `'^([^\31]*)'`,
		"T_MATCH[[(KIND=%l+)]]":                                       `'^(%l+)\31'`,
		"T_MATCH[[KIND=due (N=%d+) (ITEMS=x.*)]]":                     `'^due\31(%d+)\31\0310\31\31(x.*)$'`,
		"T_MATCH[[KIND=a%z([^\\31]*) ((N) NAME TRIES=%d*)\n  ITEMS]]": `'^a%z([^\31]*)\31(([^\31]*)\31[^\31]*\31%d*)\31\31[^\31]*$'`,
		"T_MATCH[[* (TRIES=%d+ * ITEMS=.*)]]":                         `'^[^\31]*\31[^\31]*\31[^\31]*\31(%d+\31[^\31]*\31.*)$'`,
	} {
		if got := things.Expand(text); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", text, got, want)
		}
	}
	for _, text := range []string{"T_TEXT{NONE = 1}", "T_TEXT{N = 1; KIND = 2}", "T_MATCH[[NONE]]", "T_MATCH[[N KIND]]"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", text)
				}
			}()
			things.Expand(text)
		}()
	}
}

func TestRecordsAreTheTextOfTheirFields(t *testing.T) {
	t.Parallel()
	things := RecordOf[storedThing]("T", 31)
	for text, want := range map[string]int{"": 1, "due": 1, "due\x1f0\x1fa\x1f0\x1f\x1fxa\x1fxb": 6} {
		record, n := things.Parse(text)
		if n != want {
			t.Errorf("%q has %d fields, want %d", text, n, want)
		}
		if got := things.Text(&record); n == 6 && got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}
