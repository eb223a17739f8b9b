package jobs_test

import (
	"testing"

	"lockstep/jobs"
)

func TestPiecesCoverTheirText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"${A}", "x${A}y${B:-b}z", "$$", "a$$b", "$$${A}$$", "$A ${B} $", "é${file:/x}漢", "}{${A}}$$$", "$$$A${B}"} {
		list, err := jobs.Pieces(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		at := 0
		for _, p := range list {
			written := text[p.From:p.To]
			if p.From != at || p.Source != "" && p.Source != written || p.Source == "" && p.Plain != written && p.Plain+"$" != written {
				t.Errorf("%q: got the piece %+v for %q, after %d bytes", text, p, written, at)
			}
			at = p.To
		}
		if at != len(text) {
			t.Errorf("%q: the pieces end after %d bytes", text, at)
		}
	}
	for _, text := range []string{"", "plain", "$A", "5 $", "{A}"} {
		if list, err := jobs.Pieces(text); list != nil || err != nil {
			t.Errorf("%q: got %+v, %v, want no pieces", text, list, err)
		}
	}
}

func TestHasPlaceholders(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": false, "$5": false, `["$A"]`: false, "${A}": true, "$$": true, `["\u0024{A}"]`: true,
	} {
		if got := jobs.HasPlaceholders([]byte(text)); got != want {
			t.Errorf("%s: got %t, want %t", text, got, want)
		}
	}
}
