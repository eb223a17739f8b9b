package cmd

import (
	"testing"
	"time"
)

// TestOutageLongerThanTheLeaseEndsTheWorkInTime: nobody can tell the workers anything; they end what they run by
// themselves, and it goes on when Redis is back.
func TestOutageLongerThanTheLeaseEndsTheWorkInTime(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	f, server := newPack(t, `jobs: {during: {command: HOLD, lock: `+anyLock+`}}`, "LOCKSTEP_LOCKS__LEASE="+lease.String())
	f.locks["during"] = []string{"desk"}
	f.startAll(2)
	run := f.enqueue("during", "x")
	command := f.held(run)
	began := time.Now()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the command is dead", func() bool { return !goesOn(command) })
	took := time.Since(began)
	t.Logf("with a lease of %s the command was dead %s after Redis went away", lease, took)
	if took > lease+2*time.Second { // the lease is what counts; the rest is for a machine with much else to do
		t.Errorf("the command was dead after %s, want before the lease of %s is over", took, lease)
	}
	// As long again: now the lease is over for Redis, too.
	pause(t.Context(), lease)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	t.Logf("the next attempt began %s after Redis was back", f.takenOver(run, back))
	f.checkOverlap()
	f.drain()
}

// TestShortOutageCancelsNothing: Redis is away for less than 2/3 of the lease less the cutoff.
func TestShortOutageCancelsNothing(t *testing.T) {
	t.Parallel()
	const outage = 3 * time.Second // of 6.9 s
	f, server := newPack(t, `
jobs:
  long: {command: [sh, -c, 'e() { echo "$1 $LOCKSTEP_RUN_ID $LOCKSTEP_ATTEMPT $LOCKSTEP_TOKEN" >> EFFECTS; }; e start; sleep 4; e end']}
`)
	f.startAll(2)
	run := f.enqueue("long", "x")
	f.await(run, "running")
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	pause(t.Context(), outage)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	if got := f.await(run, "succeeded"); len(got.Attempts) != 1 || got.Crashes != 0 {
		t.Errorf("%+v, want one attempt", got)
	}
	f.checkOverlap()
	f.drain()
}
