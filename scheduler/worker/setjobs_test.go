package worker_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/worker"
)

// limitOf declares a limit of permits.
func limitOf(name string) map[string]locks.PermitLimit {
	return map[string]locks.PermitLimit{name: {Permits: 1}}
}

// reloading is a fleet with a worker that can be blocked while it declares some permits.
type reloading struct {
	*fleet
	blocked map[string]chan struct{} // by permits: closed when a declaration of them has arrived
	passes  map[string]chan struct{} // by permits: declarations wait until it is closed
}

func newReloading(t *testing.T, permits ...string) *reloading {
	r := &reloading{fleet: newFleet(t), blocked: make(map[string]chan struct{}), passes: make(map[string]chan struct{})}
	for _, name := range permits {
		r.blocked[name], r.passes[name] = make(chan struct{}), make(chan struct{})
	}
	return r
}

// blocks holds up the declarations of a worker, on connections that it opens itself.
func (r *reloading) blocks() func(*worker.Options) {
	arrived := make(map[string]*sync.Once)
	for name := range r.blocked {
		arrived[name] = new(sync.Once)
	}
	return func(o *worker.Options) {
		options := *r.rdb.Options()
		options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &watchedConn{conn, func(request string) error {
				for name, blocked := range r.blocked {
					if strings.Contains(request, name) {
						arrived[name].Do(func() { close(blocked) })
						<-r.passes[name]
					}
				}
				return nil
			}}, err
		}
		rdb := redis.NewClient(&options)
		r.Cleanup(func() { _ = rdb.Close() })
		o.Redis = rdb
	}
}

// watchedConn sends a request when sends has returned nil.
type watchedConn struct {
	net.Conn
	sends func(request string) error
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if err := c.sends(string(p)); err != nil {
		return 0, errors.Join(err, c.Close())
	}
	return c.Conn.Write(p)
}

// awaitBlocked waits until the declaration of some permits has arrived.
func (r *reloading) awaitBlocked(permits string) {
	r.Helper()
	select {
	case <-r.blocked[permits]:
	case <-time.After(patience):
		r.Fatalf("the permits %s are not declared", permits)
	}
}

// reload starts to replace the jobs. It returns when that is done, or takes so long that it must be
// waiting for something. Call the function that it returns for the error.
func (r *reloading) reload(w *running, version *jobs.Job, permits map[string]locks.PermitLimit) (wait func() error) {
	r.Helper()
	done := make(chan error, 1)
	go func() { done <- w.SetJobs(r.Context(), []*jobs.Job{version}, permits, version.Description) }()
	finished := sync.OnceValue(func() error { return <-done })
	r.Cleanup(func() { _ = finished() })
	select {
	case err := <-done:
		done <- err
	case <-time.After(300 * time.Millisecond): // a reload takes some milliseconds
	}
	return finished
}

// wantVersion waits until a definition is active, and its config on the card of the worker.
func (r *reloading) wantVersion(w *running, want string) {
	r.Helper()
	r.await("definition "+want, func() bool { return r.active("j") == want && r.card(w.ID()).Config == want })
}

// TestAReloadAtTheStartOfAWorkerPrevails: Run takes over the jobs of a first reload, which came
// while it was starting, when a second reload comes.
func TestAReloadAtTheStartOfAWorkerPrevails(t *testing.T) {
	r := newReloading(t, "permits-at-start", "permits-first")
	job := r.job("j", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	first, second := *job, *job
	first.Description, second.Description = "first", "second"
	w := r.launch(r.blocks(), func(o *worker.Options) { o.Permits = limitOf("permits-at-start") })
	r.awaitBlocked("permits-at-start")
	if err := w.SetJobs(t.Context(), []*jobs.Job{&first}, limitOf("permits-first"), "first"); err != nil {
		t.Fatal(err)
	}
	close(r.passes["permits-at-start"])
	r.awaitBlocked("permits-first")
	wait := r.reload(w, &second, nil)
	close(r.passes["permits-first"])
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	r.await("the worker to be ready", func() bool { return w.Unready() == nil })
	r.wantVersion(w, "second")
}

// TestTheLastOfTwoReloadsPrevails: the second one comes while the first one declares permits.
func TestTheLastOfTwoReloadsPrevails(t *testing.T) {
	r := newReloading(t, "permits-first")
	job := r.job("j", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	first, second := *job, *job
	first.Description, second.Description = "first", "second"
	w := r.start(r.blocks())
	waitFirst := r.reload(w, &first, limitOf("permits-first"))
	r.awaitBlocked("permits-first")
	waitSecond := r.reload(w, &second, nil)
	close(r.passes["permits-first"])
	for _, wait := range []func() error{waitFirst, waitSecond} {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
	r.wantVersion(w, "second")
}
