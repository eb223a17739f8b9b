package locks

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// A command that the client library sends again by itself would be applied twice. One that
// continues beyond its deadline, or a dial that is tried again and again, would keep a renewal from
// being sent.
func TestOwnClientsSendOnceAndKeepDeadlines(t *testing.T) {
	t.Parallel()
	const try = 700 * time.Millisecond
	sentinel := &redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, MaxRetries: 5}
	cluster := &redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRetries: 5, ReadOnly: true, RouteRandomly: true}
	for name, rdb := range map[string]redis.UniversalClient{
		"plain": redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: 5}), "sentinel": redis.NewFailoverClient(sentinel),
		"cluster": redis.NewClusterClient(cluster),
	} {
		own, err := new(Client).ownClient(rdb, nil, try, 0)
		if err != nil {
			t.Fatal(err)
		}
		switch own := own.(type) {
		case *redis.Client: // it makes 0 of -1: no retries
			o := own.Options()
			if o.MaxRetries != 0 || o.DialerRetries != 1 || !o.ContextTimeoutEnabled || o.ReadTimeout != try || o.DialTimeout != try {
				t.Errorf("%s: %d retries, %d dials, deadlines kept %v, %s for a reply", name, o.MaxRetries, o.DialerRetries,
					o.ContextTimeoutEnabled, o.ReadTimeout)
			}
		case *redis.ClusterClient:
			o := own.Options()
			if o.MaxRetries > 0 || o.MaxRedirects != 3 || !o.ContextTimeoutEnabled || o.ReadOnly || o.RouteRandomly {
				t.Errorf("%s: %d retries, %d redirects, deadlines kept %v, reads of replicas %v", name, o.MaxRetries, o.MaxRedirects,
					o.ContextTimeoutEnabled, o.ReadOnly)
			}
		}
		if err := own.Close(); err != nil {
			t.Error(err)
		}
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A name in one space is unrelated to the same name in another one, and a hold of one covers
// nothing of the other.
func TestSpacesAreIndependent(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx := t.Context()
		first, second := opened(t, rdb, redistest.Namespace(t)), opened(t, rdb, redistest.Namespace(t))
		if _, err := first.Declare(ctx, "p", PermitLimit{Permits: 1}); err != nil {
			t.Fatal(err)
		}
		one, err := first.Acquire(ctx, Exclusive("a"), Permits("p", 1))
		if err != nil {
			t.Fatal(err)
		}
		// not re-entered: it is another lock
		other, err := second.TryAcquire(one.Context(), Exclusive("a", "p"))
		if err != nil {
			t.Fatal(err)
		}
		if second.IsHeld(one.Context(), "a") || !second.IsHeld(other.Context(), "a") || !first.IsHeld(other.Context(), "a") {
			t.Error("IsHeld mixes the spaces up")
		}
		for _, c := range []*Client{first, second} {
			if listing, err := c.Space().Read(ctx); err != nil || len(listing.Holds) != 1 || listing.Holds[0].Session != c.Session() {
				t.Errorf("got %+v, %v; want the hold of %s alone", listing, err, c.Session())
			}
		}
		if err := one.Release(); err != nil {
			t.Error(err)
		}
		if lock, err := second.Space().HeldBy(ctx, "a"); err != nil || lock.Holder(other.Token()) == nil {
			t.Errorf("got %+v, %v after the release in the other space", lock, err)
		}
	})
}

// counted is a hook that counts scripts, alone and in pipelines.
type counted struct{ scripts, dials atomic.Int64 }

func (c *counted) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c.dials.Add(1)
		return next(ctx, network, address)
	}
}

func (c *counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *counted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return next(ctx, cmds)
	}
}

func (c *counted) count(cmd redis.Cmder) {
	if strings.EqualFold(cmd.Name(), "evalsha") {
		c.scripts.Add(1)
	}
}

// TestHooksOfTheCallerSeeOurCommands instruments the package's own clients, which have none of the
// hooks of the caller's client.
func TestHooksOfTheCallerSeeOurCommands(t *testing.T) {
	t.Parallel()
	rdb, theirs, ours := redistest.Client(t), new(counted), new(counted)
	rdb.AddHook(theirs)
	clients := 0
	c, err := Open(t.Context(), rdb, Options{Namespace: redistest.Namespace(t), Instrument: func(rdb redis.UniversalClient) error {
		clients++
		rdb.AddHook(ours)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	before := ours.scripts.Load()
	hold, err := c.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	if got := ours.scripts.Load() - before; got < 2 || clients != 2 || ours.dials.Load() == 0 || theirs.scripts.Load() != 0 {
		t.Errorf("%d scripts and %d dials of %d clients were seen, %d by the hook of the caller's client; want two scripts or more of two clients",
			got, ours.dials.Load(), clients, theirs.scripts.Load())
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}

	refusal := errors.New("no tracer")
	_, err = Open(t.Context(), rdb, Options{Namespace: redistest.Namespace(t), Instrument: func(redis.UniversalClient) error { return refusal }})
	if !errors.Is(err, refusal) {
		t.Errorf("got %v, want the error of Instrument", err)
	}
}
