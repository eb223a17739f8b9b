package cmd

import (
	"bufio"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// measured is a worker with the address of its metrics.
type measured struct {
	PID   int
	State string
	Admin string
}

// measured returns the workers that serve metrics now.
func (f *fleet) measured() []measured {
	f.t.Helper()
	return slices.DeleteFunc(ask[[]measured](f.t, f.env, "worker", "ls"), func(w measured) bool { return w.State == "gone" || w.Admin == "" })
}

// scrape returns the metrics of a worker by their names with labels; nil if it does not answer,
// since it has just died.
func scrape(address string) map[string]float64 {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	response, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	found := make(map[string]float64)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if value, err := strconv.ParseFloat(lines.Text()[at+1:], 64); err == nil && !strings.HasPrefix(lines.Text(), "#") {
			found[lines.Text()[:at]] = value
		}
	}
	if lines.Err() != nil {
		return nil
	}
	return found
}

// sums returns the metrics of all workers, added up, and the worker on duty, or nil.
func (f *fleet) sums() (sums map[string]float64, duty *measured) {
	f.t.Helper()
	sums = make(map[string]float64)
	for _, w := range f.measured() {
		found := scrape(w.Admin)
		if found["lockstep_duty"] == 1 {
			duty = &w
		}
		for name, value := range found {
			sums[name] += value
		}
	}
	return sums, duty
}

// wantSums waits until the sums over all workers are these. They may be higher only while duty
// moves.
func (f *fleet) wantSums(when string, want map[string]float64) (duty *measured) {
	f.t.Helper()
	var got map[string]float64
	eventually(f.t, time.Minute, when, func() bool {
		var all map[string]float64
		all, duty = f.sums()
		got = maps.Clone(want)
		for name := range got {
			if value, is := all[name]; is {
				got[name] = value
			} else {
				got[name] = -1
			}
		}
		if duty == nil || all["lockstep_duty"] != 1 {
			return false
		}
		return maps.Equal(got, want)
	})
	return duty
}

// TestEachEndIsCountedOnceInTheFleet: also the end of a run that dies with its worker, and one that
// a process without metrics wrote; and it stays so when duty moves.
func TestEachEndIsCountedOnceInTheFleet(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {once: {command: HOLD, env: {AT: during}, on_crash: abandon}}`, long)
	f.startAll(2)
	const lost, canceled = `lockstep_runs_ended_total{job="once",outcome="lost",trigger="enqueue"}`,
		`lockstep_runs_ended_total{job="once",outcome="canceled",trigger="enqueue"}`
	const crashes = `lockstep_attempts_total{job="once",outcome="crashed"}`
	f.wantSums("nothing is counted yet", map[string]float64{lost: 0, canceled: 0, crashes: 0, `lockstep_workers{state="ready"}`: 2})

	run := f.enqueue("once", "x")
	f.held(run)
	worker, _ := f.runner(run)
	worker.killChild()
	f.await(run, "lost")
	for _, args := range [][]string{{"enqueue", "once", "--id", "y", "--in", "1h"}, {"run", "cancel", "once#y", "--yes", "--reason", "test"}} {
		if _, stderr, code := runTool(t, f.env, args...); code != 0 {
			t.Fatalf("lockstep %v: exit code %d: %s", args, code, stderr)
		}
	}
	ends := map[string]float64{lost: 1, canceled: 1, crashes: 1, `lockstep_workers{state="ready"}`: 2}
	duty := f.wantSums("each end is counted once", ends)

	at := slices.IndexFunc(f.workers, func(p *process) bool { return p.worker() == duty.PID })
	if at < 0 {
		t.Fatalf("no process is the worker on duty, %+v", duty)
	}
	f.workers[at].killChild()
	f.wantSums("and still when duty has moved", ends)
	f.drain()
}
