package jobs_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"lockstep/jobs"
)

func TestCutTextEndsAtAWholeCharacterAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "short", strings.Repeat("a", 100), strings.Repeat("a", 101), strings.Repeat("é", 500),
		strings.Repeat("日本", 40_000), "a" + strings.Repeat("😀", 99)} {
		got := jobs.Cut(text, 100)
		switch {
		case len(text) <= 100 && got != text:
			t.Errorf("Cut changed a text of %d bytes to %q", len(text), got)
		case len(got) > 100 || !utf8.ValidString(got):
			t.Errorf("Cut of %d bytes returned %d bytes, valid %v: %q", len(text), len(got), utf8.ValidString(got), got)
		case len(text) > 100 && (!strings.HasSuffix(got, " bytes left out]") || !strings.HasPrefix(got, text[:60])):
			t.Errorf("Cut of %d bytes returned %q", len(text), got)
		}
	}
}

func TestTooLargeTextsAreRefusedWithLimitAndRemedy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want string
	}{
		{jobs.CheckArgs(128<<10, 0), ""},
		{jobs.CheckArgs(128<<10+1, 0), "args are too large: 131073 bytes, and limits.args allows 131072; store the data elsewhere and pass its name or address"},
		{jobs.CheckArgs(11, 10), "args are too large: 11 bytes, and limits.args allows 10; store the data elsewhere and pass its name or address"},
		{jobs.CheckReason(strings.Repeat("x", 1024)), ""},
		{jobs.CheckReason(strings.Repeat("x", 1025)), "the reason is too large: 1025 bytes, and at most 1024 are kept; shorten it"},
	} {
		if got := text(test.err); got != test.want {
			t.Errorf("got  %q\nwant %q", got, test.want)
		}
		if test.err != nil && (!errors.Is(test.err, jobs.ErrTooLarge) || !jobs.IsPermanent(test.err)) {
			t.Errorf("%v is not a permanent ErrTooLarge", test.err)
		}
	}
}

func TestArgsAreTheSameWhateverTheirSpelling(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"", "", true},
		{"", "{}", true},
		{"{}", "{ }", true},
		{`{"a": 1}`, `{"a":1}`, true},
		{`{"a":"<&>"}`, `{"a":"\u003c\u0026\u003e"}`, true},
		{`{"a":7}`, `{"a":8}`, false},
		{`{"a":"${X}"}`, `{"a":"x"}`, false},
		{"", "null", false},
		{"not JSON", "not JSON", true},
		{"not JSON", "{}", false},
	} {
		if got := jobs.SameArgs(json.RawMessage(test.a), json.RawMessage(test.b)); got != test.want {
			t.Errorf("SameArgs(%s, %s) = %t, want %t", test.a, test.b, got, test.want)
		}
		if got := jobs.SameArgs(json.RawMessage(test.b), json.RawMessage(test.a)); got != test.want {
			t.Errorf("SameArgs(%s, %s) = %t, want %t", test.b, test.a, got, test.want)
		}
	}
}
