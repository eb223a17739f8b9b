package worker_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// cutOff has a worker with its own way to Redis, which can be cut.
type cutOff struct {
	*fleet
	worker  *running
	proxy   *redistest.Proxy
	digest  string          // of the config that it carries
	session locks.SessionID // its session before it was cut off
}

// startCutOff starts a worker with the jobs of the fleet and cuts it off.
func startCutOff(t *testing.T, f *fleet, server *redistest.Server) *cutOff {
	t.Helper()
	c := &cutOff{fleet: f, proxy: server.Proxy(t)}
	c.worker = f.start(func(o *worker.Options) { o.Redis, o.Locks.Lease = c.proxy.Client(t), 2*time.Second })
	c.session = f.session(c.worker)
	var err error
	if c.digest, _, err = ledger.Digest(f.jobs); err != nil {
		t.Fatal(err)
	}
	c.proxy.Set(redistest.Faults{DropRequests: true, DropReplies: true})
	return c
}

// vanishes makes the worker appear to have been away for so long that its definitions give way.
func (c *cutOff) vanishes() {
	c.Helper()
	c.await("the session to end", func() bool {
		sessions, _, err := c.ledger.Space().Sessions(c.Context())
		if err != nil {
			c.Fatal(err)
		}
		return !slices.ContainsFunc(sessions, func(s locks.SessionRecord) bool { return s.ID == c.session })
	})
	gone := time.Now().Add(-ledger.GoneAfter - time.Second).UnixMilli()
	if err := c.rdb.HSet(c.Context(), c.key("ledger"), "config:"+c.digest, gone).Err(); err != nil {
		c.Fatal(err)
	}
}

// passes makes the time at which definitions were dropped as late as if the worker had been absent
// for so long.
func (c *cutOff) passes() {
	c.Helper()
	dropped, err := c.rdb.HGet(c.Context(), c.key("ledger"), "dropped").Int64()
	if err != nil {
		c.Fatalf("no definition was dropped: %v", err)
	}
	later := dropped + ledger.GoneAfter.Milliseconds()
	if err := c.rdb.HSet(c.Context(), c.key("ledger"), "dropped", later).Err(); err != nil {
		c.Fatal(err)
	}
}

// returns lifts the fault, and waits until the worker has its next session.
func (c *cutOff) returns(session locks.SessionID) {
	c.Helper()
	c.proxy.Set(redistest.Faults{})
	c.proxy.Cut()
	c.await("the next session", func() bool { id := c.worker.ID(); return id != "" && id != session })
}

// carriers returns the configs that carry definitions of a job, as far as registrations know.
func (f *fleet) carriers(job string) string {
	f.Helper()
	return f.rdb.HGet(f.Context(), f.key("facts"), "v"+job).Val()
}

// active returns the description of the active definition of a job.
func (f *fleet) active(job string) string {
	f.Helper()
	record, err := f.ledger.Job(f.Context(), job)
	if err != nil {
		f.Fatal(err)
	}
	return record.Job.Description
}

// rollout has a worker with the older definition of a job, which is cut off, and one with a newer
// definition, which dropped the older one.
type rollout struct {
	*cutOff
	newer *running
	jobs  []*jobs.Job // with the older definition
}

// startRollout starts both workers.
func startRollout(t *testing.T) *rollout {
	t.Helper()
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	job, other := f.everySecond("j"), f.everySecond("other")
	f.jobs = []*jobs.Job{job}
	older := startCutOff(t, f, server)
	newer := *job
	newer.Description = "newer"
	w := f.start(func(o *worker.Options) { o.Jobs = []*jobs.Job{&newer} })
	older.vanishes()
	// A reload registers the definition again, which drops the older one.
	if err := w.SetJobs(t.Context(), []*jobs.Job{&newer, other}, nil, "two"); err != nil {
		t.Fatal(err)
	}
	r := &rollout{cutOff: older, newer: w, jobs: []*jobs.Job{job, other}}
	f.await("the older definition to be dropped", func() bool { return !r.registered() })
	return r
}

// registered reports whether the older definition is registered as carried.
func (r *rollout) registered() bool { return strings.Contains(r.carriers("j"), r.digest) }

// rejoins waits until the worker that was cut off has registered its definition.
func (r *rollout) rejoins() {
	r.Helper()
	r.returns(r.session)
	r.await("the older definition to be registered", r.registered)
}

// TestAWorkerThatReturnsDoesNotTakeADeployBack: a worker is cut off from Redis for so long that its
// definition gives way. Meanwhile another worker is started with a newer one.
func TestAWorkerThatReturnsDoesNotTakeADeployBack(t *testing.T) {
	r := startRollout(t)
	r.rejoins()
	if got := r.active("j"); got != "newer" {
		t.Errorf("when the worker has returned, the active definition is %q, want the newer one", got)
	}
	r.await("the worker that returned to show as drifted", func() bool { return r.card(r.worker.ID()).Drifted == 1 })
	if card := r.card(r.newer.ID()); card.Drifted != 0 {
		t.Errorf("%d jobs of the other worker have drifted", card.Drifted)
	}

	r.newer.stop()
	r.await("the older definition to be active again", func() bool { return r.active("j") == "" })
}

// TestAWorkerThatReturnsCarriesItsDefinitionsAgain: while a worker is cut off, its definition gives
// way to a newer one, which a start with the older one takes back. The worker finds its definition
// active, and must register that it carries it: the other worker leaves.
func TestAWorkerThatReturnsCarriesItsDefinitionsAgain(t *testing.T) {
	r := startRollout(t)
	back := r.start(func(o *worker.Options) { o.Jobs = r.jobs })
	r.await("the older definition to be active", func() bool { return r.active("j") == "" })
	r.passes()
	r.rejoins()
	back.stop()
	drifted := func() bool { return r.card(r.newer.ID()).Drifted == 1 }
	r.await("the newer definition to have drifted", drifted)
	until := time.Now().Add(2 * time.Second) // the other worker registers at once when one leaves
	r.await("some time to pass", func() bool { return time.Now().After(until) })
	if got := r.active("j"); got != "" || !drifted() {
		t.Errorf("the active definition is %q, want the older one, which a worker was started with last", got)
	}
}
