package scale_test

import (
	"context"
	"os"
	"testing"
	"time"

	"lockstep/locks/redistest"
	"lockstep/scheduler/scale"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// TestNoScriptKeepsRedisBusy measures the scripts in a large namespace; with LOCKSTEP_SOAK it is as large as lockstep is
// made for. Twice the time that a script may take is allowed here, for a machine that is busy with other tests: `make
// bench ARGS='-run scripts'` measures.
func TestNoScriptKeepsRedisBusy(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills a Redis")
	}
	size := scale.Size{Holds: 5_000, Waits: 500, Runs: 5_000}
	if os.Getenv("LOCKSTEP_SOAK") != "" {
		size = scale.Full
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	costs, err := scale.Measure(ctx, redistest.New(t, redistest.Options{}).Client(t), redistest.Namespace(t), size)
	if err != nil {
		t.Fatal(err)
	}
	for _, cost := range costs {
		t.Logf("%-20s %8s  %s", cost.Script, cost.Took.Round(time.Microsecond), cost.Use)
		if cost.Took > 2*scale.Longest {
			t.Errorf("%s took %s; want at most %s (%s)", cost.Script, cost.Took, 2*scale.Longest, cost.Use)
		}
	}
	if len(costs) < 25 {
		t.Errorf("%d scripts were measured, want 25 at least", len(costs))
	}
}
