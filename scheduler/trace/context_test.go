package trace_test

import (
	"strings"
	"testing"

	"lockstep/scheduler/trace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestAnInvalidTraceContextIsNone(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]string{
		"nothing": "", "words": "hello", "upper case": strings.ToUpper(parent), "no trace": "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"no span": "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "version ff": "ff" + parent[2:], "too short": parent[:54],
		"too long": parent + "-00", "no flags": parent[:52], "a quote": `00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333"-01`,
	} {
		if got := trace.Parse(given, "a=1"); got != (trace.Context{}) {
			t.Errorf("%s: got %+v, want none", name, got)
		}
	}
	for given, want := range map[string]string{parent: parent, " " + parent + " ": parent, parent[:53] + "00": parent[:53] + "00", "cc" + parent[2:] + "-more": parent} {
		got := trace.Parse(given, "a=1,b=2")
		if got.Parent != want || got.State != "a=1,b=2" {
			t.Errorf("%s: got %+v, want %s with its state", given, got, want)
		}
		if id := got.TraceID(); id != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s: got the trace %s", given, id)
		}
		if again := trace.Of(got.In(t.Context())); again != got {
			t.Errorf("%s: a context carries %+v, want %+v", given, again, got)
		}
	}
}

func TestATraceStateIsBounded(t *testing.T) {
	t.Parallel()
	member := func(key string, length int) string { return key + "=" + strings.Repeat("x", length-len(key)-1) }
	long, short := member("long", 200), member("s", 100)
	for _, c := range []struct{ name, given, want string }{
		{"broken", "a=1,,=", ""},
		{"a double", "a=1,a=2", ""},
		{"fits", strings.Join([]string{member("a", 255), member("b", 256)}, ","), strings.Join([]string{member("a", 255), member("b", 256)}, ",")},
		{"long ones go first", strings.Join([]string{short, long, member("t", 100), member("u", 100), member("v", 100), member("w", 100)}, ","),
			strings.Join([]string{short, member("t", 100), member("u", 100), member("v", 100), member("w", 100)}, ",")},
		{"then the last ones", strings.Join([]string{member("a", 120), member("b", 120), member("c", 120), member("d", 120), member("e", 120)}, ","),
			strings.Join([]string{member("a", 120), member("b", 120), member("c", 120), member("d", 120)}, ",")},
	} {
		got := trace.Parse(parent, c.given)
		if got.Parent != parent || got.State != c.want {
			t.Errorf("%s: got %d bytes %.60q, want %d bytes %.60q", c.name, len(got.State), got.State, len(c.want), c.want)
		}
		if len(got.State) > trace.StateMost {
			t.Errorf("%s: %d bytes", c.name, len(got.State))
		}
	}
}

// FuzzParse: a context goes into a header, an environment, and a record. Control bytes and blanks
// separate the fields of the record.
func FuzzParse(f *testing.F) {
	f.Add(parent, "a=1")
	f.Add("cc"+parent[2:]+"-x", "a= b c,d@e=f")
	f.Fuzz(func(t *testing.T, parent, state string) {
		got := trace.Parse(parent, state)
		if got.Parent == "" && got.State != "" || got.Parent != "" && len(got.Parent) != 55 || len(got.State) > trace.StateMost {
			t.Errorf("got %+v", got)
		}
		for _, c := range []byte(got.Parent + got.State) {
			if c < ' ' || c > '~' {
				t.Errorf("got %q", got)
			}
		}
		if trace.Parse(got.Parent, got.State) != got {
			t.Errorf("%+v is read as %+v", got, trace.Parse(got.Parent, got.State))
		}
	})
}
