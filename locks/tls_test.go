package locks_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestClientsUseTheTLSOfTheCaller hands a lock over between two clients on each topology. None of
// the servers and sentinels has a port without TLS, so every connection uses it.
func TestClientsUseTheTLSOfTheCaller(t *testing.T) {
	t.Parallel()
	secure := redistest.NewAuthority(t).TLS(t, redistest.Certificate{})
	for name, connect := range map[string]func(t *testing.T) func() redis.UniversalClient{
		"standalone": func(t *testing.T) func() redis.UniversalClient {
			o, err := redis.ParseURL(redistest.New(t, redistest.Options{TLS: secure}).URL())
			if err != nil {
				t.Fatal(err)
			}
			o.TLSConfig = secure.Client()
			return func() redis.UniversalClient { return redis.NewClient(o) }
		},
		"sentinel": func(t *testing.T) func() redis.UniversalClient {
			s := redistest.NewSentinel(t, redistest.SentinelOptions{TLS: secure})
			return func() redis.UniversalClient { return s.Client(t) }
		},
		"cluster": func(t *testing.T) func() redis.UniversalClient {
			c := redistest.NewCluster(t, redistest.ClusterOptions{TLS: secure, Replicas: -1})
			return func() redis.UniversalClient { return c.Client(t) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := connect(t)
			open := func(name string) *locks.Client {
				own := rdb()
				t.Cleanup(func() { _ = own.Close() })
				return openClient(t, own, locks.Options{Namespace: "ns", Name: name})
			}
			holder, waiter := open("holder"), open("waiter")
			hold := acquire(t, holder, locks.Exclusive("a"))
			granted := make(chan error, 1)
			go func() {
				_, err := waiter.Acquire(within(t, patient), locks.Exclusive("a"))
				granted <- err
			}()
			eventually(t, "a client waits", func() bool { return len(waits(t, holder)) == 1 })
			release(t, hold)
			if err := <-granted; err != nil {
				t.Errorf("the waiter: %v", err)
			}
		})
	}
}
