package redistest_test

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

func TestServersWithTLSAcceptOnlyKnownClients(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	secure := authority.TLS(t, redistest.Certificate{})
	server := redistest.New(t, redistest.Options{TLS: secure})
	reach := func(config *tls.Config) error {
		o, err := redis.ParseURL(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		o.TLSConfig, o.MaxRetries, o.DialerRetries = config, -1, 1
		rdb := redis.NewClient(o)
		defer rdb.Close()
		return rdb.Ping(t.Context()).Err()
	}
	own := secure.Client()
	if err := reach(own); err != nil {
		t.Errorf("with a certificate of the authority: %v", err)
	}
	if err := reach(nil); err == nil {
		t.Error("a client without TLS is accepted")
	}
	if err := reach(&tls.Config{RootCAs: own.RootCAs}); err == nil {
		t.Error("a client without a certificate is accepted")
	}
	stranger := own.Clone()
	stranger.RootCAs = redistest.NewAuthority(t).TLS(t, redistest.Certificate{}).Client().RootCAs
	var unknown *tls.CertificateVerificationError
	if err := reach(stranger); !errors.As(err, &unknown) {
		t.Errorf("got %v, want a certificate that is not verified", err)
	}
}

func TestTopologiesWithTLSChangeTheirMasters(t *testing.T) {
	t.Parallel()
	secure := redistest.NewAuthority(t).TLS(t, redistest.Certificate{})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.NewSentinel(t, redistest.SentinelOptions{TLS: secure})
		rdb := s.Client(t)
		if err := rdb.Set(t.Context(), "k", "before", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := s.Failover(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the client writes to the new master", func() bool { return rdb.Set(t.Context(), "k", "after", 0).Err() == nil })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.NewCluster(t, redistest.ClusterOptions{TLS: secure, NodeTimeout: 4 * time.Second})
		rdb := c.Client(t)
		if err := rdb.Set(t.Context(), "k", "before", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := c.Failover(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the client writes to the new master", func() bool { return rdb.Set(t.Context(), "k", "after", 0).Err() == nil })
	})
}
