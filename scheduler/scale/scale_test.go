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

// unreached are the scripts that [scale] does not run, with the reason.
var unreached = map[string]string{
	"locks/assert":     "runs after a loss of all data; TestMassesOfHoldsSurviveTheLossOfAllData measures it",
	"locks/generation": "runs after a doubt about one's own session; it reads three fields of a hash",
	"locks/renew":      "runs once per third of a lease, in no round in particular; BenchmarkRenewal measures it",
	"ledger/assert":    "runs after a loss of all data, on 100 facts at most",
	"ledger/unstage":   "runs after Redis has refused the first part of a staged list; it reads two fields of a hash",
	"ledger/lacks":     "runs after a loss of all data, on 100 ends at most",
	"queue/take":       "needs a queue server; it reads at most as many deliveries or tasks as a fetch takes",
	"queue/wake":       "needs a queue server; it reads the last of the sleeping workers",
	"queue/settle":     "needs a queue server; it looks along the tasks that the workers of a queue are adopting",
}

// TestNoScriptGrowsWithTheNamespace measures the scripts in a small namespace and in one that is
// many times as large: a script must not read all holds, waits or runs. The measurements alternate,
// so that other work of the machine slows both. The small one fills the largest page of a read, so
// that a page takes the same time in both. With LOCKSTEP_SOAK the large namespace has the size
// that lockstep is made for. `make bench ARGS='-run scripts'` shows the times at that size.
func TestNoScriptGrowsWithTheNamespace(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills a Redis")
	}
	small := scale.Size{Holds: 500, Waits: 50, Runs: 1_000}
	large := scale.Size{Holds: 8_000, Waits: 800, Runs: 10_000}
	if os.Getenv("LOCKSTEP_SOAK") != "" {
		large = scale.Full
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	growths, err := scale.Compare(ctx, redistest.New(t, redistest.Options{}).Client(t), redistest.Namespace(t), small, large)
	if err != nil {
		t.Fatal(err)
	}
	measured := make(map[string]bool)
	for _, g := range growths {
		measured[g.Script] = true
		t.Logf("%-20s %8s %8s  %s", g.Script, g.Small, g.Large, g.Use)
		if g.Grows() {
			t.Errorf("%s took %s in a namespace of %+v and %s in one of %+v: it grows with the namespace (%s)", g.Script, g.Small, small,
				g.Large, large, g.Use)
		}
	}
	for _, name := range scale.Names() {
		if !measured[name] && unreached[name] == "" {
			t.Errorf("%s is not measured; add a use of it", name)
		}
		if measured[name] && unreached[name] != "" {
			t.Logf("%s is measured, although it is said to be out of reach", name)
		}
	}
}
