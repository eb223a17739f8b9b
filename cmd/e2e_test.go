package cmd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

const fleetSize = 5

// twentyJobs are as many jobs as a fleet of this size can run; hold is the length of their runs.
// Five of them also compete for one lock.
func twentyJobs(hold time.Duration) []spec {
	jobs := make([]spec, 20)
	for i := range jobs {
		job := spec{name: fmt.Sprintf("job-%02d", i), trigger: `schedule: "* * * * * *"`, work: fmt.Sprintf("sleep %g", hold.Seconds()), more: "overlap: queue"}
		switch i % 4 {
		case 1:
			job.trigger = `schedule: "*/2 * * * * *"`
		case 2:
			job.trigger = "every: 3s"
		case 3:
			job.trigger = `schedule: "*/5 * * * * *"`
			job.more += ", lock: {exclusive: [desk]}"
		}
		jobs[i] = job
	}
	return jobs
}

const shortLease = "LOCKSTEP_LOCKS__LEASE=2s"

const fleetTime = 10 * time.Second // how long a fleet works

func TestEveryTickRunsExactlyOnceOnFiveWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet of workers takes its time")
	}
	t.Parallel()
	// A long lease: a worker that a busy machine stalls keeps its runs, however long that takes.
	f := newFleet(t, nil, twentyJobs(50*time.Millisecond), long)
	f.startAll(fleetSize)
	from := time.Now()
	pause(t.Context(), fleetTime)
	to := time.Now()
	f.drain()
	f.finish()

	h := f.read(from, to)
	f.check(h)
	runs, effects := h.runs, h.effects
	if got, want := len(effects), 2*len(runs); got != want {
		t.Errorf("%d lines of effects of %d runs, want %d: each run once", got, len(runs), want)
	}
	for _, run := range runs {
		if len(run.Attempts) != 1 {
			t.Errorf("run %s took %d attempts, though no worker was killed", run.ID, len(run.Attempts))
		}
	}
	t.Logf("%d runs of %d jobs on %d workers", len(runs), len(f.jobs), fleetSize)
}

func TestNoTickIsLostOrFinishedTwiceWhenWorkersAreKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet of workers takes its time")
	}
	t.Parallel()
	f := newFleet(t, nil, twentyJobs(500*time.Millisecond), shortLease)
	f.startAll(fleetSize)
	from := time.Now()
	seed := uint64(from.UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kills := 0
	broken := func() bool { // on a busy machine, the first kills may meet idle workers
		return slices.ContainsFunc(ask[[]runJSON](t, f.env, "run", "ls"), func(run runJSON) bool {
			return slices.ContainsFunc(run.Attempts, func(a attemptJSON) bool { return broke(a.outcome()) })
		})
	}
	for time.Since(from) < fleetTime || time.Since(from) < time.Minute && !broken() {
		pause(t.Context(), time.Duration(500+random.IntN(1000))*time.Millisecond)
		i := random.IntN(len(f.workers))
		if random.IntN(3) > 0 { // most often one that is busy
			i = f.busiest(i)
		}
		kills++
		victim := f.workers[i]
		if child := victim.worker(); child != 0 && random.IntN(2) == 0 {
			// its parent does the rest, unless it has crashed too often
			_ = syscall.Kill(child, syscall.SIGKILL)
			continue
		}
		victim.killPair()
		victim.code(10 * time.Second)
		f.workers = slices.Delete(f.workers, i, i+1)
		if random.IntN(2) == 0 { // the others are alone for a while
			pause(t.Context(), time.Duration(random.IntN(500))*time.Millisecond)
		}
		f.start()
	}
	to := time.Now()
	f.drain()
	f.finish()

	h := f.read(from, to)
	f.check(h)
	runs := h.runs
	lost := 0
	for _, run := range runs {
		for _, a := range run.Attempts {
			if broke(a.outcome()) {
				lost++
			}
		}
	}
	t.Logf("%d runs, %d workers killed, %d attempts broken off", len(runs), kills, lost)
	if lost == 0 {
		t.Error("no attempt was broken off: the test has shown nothing")
	}
}
