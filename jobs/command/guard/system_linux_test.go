package guard

import "testing"

func TestNameOfAProcessDoesNotHideItsParent(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]struct {
		state  byte
		parent int
	}{
		"17 (sh) S 12 17 17 0 -1":       {'S', 12},
		"17 (a) Z 9 (b) (c)) R 4194304": {'R', 4194304},
		"17 (sh) Z 0 0":                 {'Z', 0},
		"17 (sh) X 1":                   {'X', 1},
		"17 (sh) S":                     {},
		"17 (sh)":                       {},
		"":                              {},
	} {
		if state, parent := parseStat([]byte(stat)); state != want.state || parent != want.parent {
			t.Errorf("%q: got %c and %d, want %c and %d", stat, state, parent, want.state, want.parent)
		}
	}
}
