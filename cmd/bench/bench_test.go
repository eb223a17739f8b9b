package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
)

// TestMain lets the test binary act as one of several processes that request the same resource, as
// the program itself can.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == contendCommand {
		main()
	}
	os.Exit(m.Run())
}

func TestEveryMeasurementFillsItsTable(t *testing.T) {
	which := "pairs|waits$|^delayed|handoff|shares|renewal|kept|bundle|partition|capacity-runs|capacity-idle|capacity-memory|phases|commands"
	if testing.Short() {
		which = "pairs|shares|bundle"
	}
	var stdout, stderr bytes.Buffer
	args := []string{"-short", "-rounds", "1", "-d", "40ms", "-o", "json", "-run", which}
	if code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("got exit code %d: %s", code, stderr.Bytes())
	}
	var got report
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if want := strings.Count(which, "|") + 1; len(got.Results) != want {
		t.Errorf("got %d results, want %d", len(got.Results), want)
	}
	for _, p := range peers[1:] {
		if got.Machine.Versions[p.name] == "" {
			t.Logf("the version of %s is not known: a test binary does not always tell", p.name)
		}
	}
	for _, r := range got.Results {
		if len(r.Rows) == 0 {
			t.Errorf("%s has no rows", r.Name)
		}
		for _, row := range r.Rows {
			if len(row) != len(r.Columns) {
				t.Errorf("%s: got %d cells in %v, want one for each of %q", r.Name, len(row), row, r.Columns)
			}
		}
		// The counts do not depend on the speed of the machine.
		for _, c := range r.Checks {
			if strings.HasPrefix(c.What, "commands") && !c.OK {
				t.Errorf("%s: %s: got %g, want at most %g", r.Name, c.What, c.Got, c.Target)
			}
		}
	}
}

func TestWrongUsageIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-run", "("}, {"-o", "yaml"}, {"-rounds", "-1"}, {"-d", "-1s"}, {"pairs"}, {"-nonsense"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, nil, new(bytes.Buffer), &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("%q: got exit code %d and %q, want 2 and a reason", args, code, stderr.Bytes())
		}
	}
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"-run", "^nothing$"}, nil, new(bytes.Buffer), &stderr); code != 1 {
		t.Errorf("got exit code %d for a name that is none, want 1: %s", code, stderr.Bytes())
	}
}

func TestMedianIsTheMiddle(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 2, 100}, 3},
	} {
		if got := median(test.values); got != test.want {
			t.Errorf("%v: got %g, want %g", test.values, got, test.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("got %g of nothing, want NaN", got)
	}
}

func TestRatioIsTakenInEachRound(t *testing.T) {
	of := func(pairs ...float64) series {
		var s series
		for _, n := range pairs {
			s = append(s, sample{took: 1, pairs: n})
		}
		return s
	}
	// Both were slow in the second round and slower in the third.
	if got := of(200, 100, 20).ratio(of(100, 50, 10), sample.rate); got != 2 {
		t.Errorf("got %g, want 2", got)
	}
}

func TestDeviationIsThatOfTheFarthest(t *testing.T) {
	if got := deviation([]float64{10, 10, 10}); got != 0 {
		t.Errorf("got %g of equal shares, want 0", got)
	}
	if got := deviation([]float64{5, 10, 15, 10}); got != 50 {
		t.Errorf("got %g, want 50", got)
	}
	if got := deviation([]float64{0, 0, 0, 40}); got != 300 {
		t.Errorf("got %g where one got all, want 300", got)
	}
}

func TestInfoIsRead(t *testing.T) {
	got := parseInfo("# Stats\r\ntotal_net_output_bytes:42\r\ncmdstat_set:calls=2,usec=5,usec_per_call=2.50\r\n\r\n")
	want := map[string]string{"total_net_output_bytes": "42", "cmdstat_set": "calls=2,usec=5,usec_per_call=2.50"}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The tables of a README can be pasted as they are printed.
func TestTableForAReadme(t *testing.T) {
	r := &result{Name: "capacity", Title: "a title", Columns: []string{"a run", "µs"}, markdown: true}
	r.row("tick", 12.345)
	r.row("request", 100)
	want := strings.Join([]string{"capacity: a title", "| a run | µs |", "|---|---|", "| tick | 12.3 |", "| request | 100 |", ""}, "\n")
	if got := r.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestTableForPeople(t *testing.T) {
	r := &result{Name: "pairs", Title: "a title", Columns: []string{"n", "library", "rate"}}
	r.note("a note of %d words", 4)
	r.row(1, "locks", 12.345)
	r.row(512, "other", 1234.5)
	r.row(0, "idle", math.NaN())
	r.atLeast(1.3, 1.5, "more")
	r.atMost(14, 15.04, "less")
	want := strings.Join([]string{
		"pairs: a title",
		"  a note of 4 words",
		"    n  library  rate",
		"    1  locks    12.3",
		"  512  other    1234",
		"    0  idle        -",
		"  ok      more: 1.50 (target: at least 1.30)",
		"  missed  less: 15.0 (target: at most 14.0)",
		"",
	}, "\n")
	if got := r.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
