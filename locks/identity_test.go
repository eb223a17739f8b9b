package locks_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// lines is a log that a test reads while it is being written.
type lines struct {
	mu  sync.Mutex
	all []byte
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line...)
	return len(line), nil
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all)
}

// userClient returns a client that signs in as a user.
func userClient(t *testing.T, server *redistest.Server, user, password string) *redis.Client {
	t.Helper()
	o := server.RedisOptions()
	o.Username, o.Password = user, password
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// TestUserWithoutInfoIsRefused opens clients under the usual rights of an application, which lack
// INFO, and with it.
func TestUserWithoutInfoIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	admin := server.Client(t)
	as := func(rights ...any) locks.Options {
		t.Helper()
		args := append([]any{"ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*"}, rights...)
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		return locks.Options{Namespace: "ns"}
	}
	rdb := userClient(t, server, "app", "secret")
	for name, rights := range map[string][]any{
		"all but the dangerous commands": {"+@all", "-@dangerous"}, "INFO of another section": {"+@all", "-info", "+info|clients"},
	} {
		c, err := patientOpen(t.Context(), rdb, as(rights...))
		if !errors.Is(err, locks.ErrServer) || !strings.Contains(err.Error(), "+info") || c != nil {
			t.Errorf("%s: got %v, want it refused by the name of the right", name, err)
		}
		findings, err := locks.CheckServer(t.Context(), rdb, 0)
		if err != nil {
			t.Fatal(err)
		}
		fatal := false
		for _, f := range findings {
			fatal = fatal || f.Level == locks.Fatal && f.Topic == "rights" && strings.Contains(f.Text, "+info")
			if f.Topic == "embedded" {
				t.Errorf("%s: a real server is taken for an embedded one", name)
			}
		}
		if !fatal {
			t.Errorf("%s: got %+v, want a fatal finding that names the right", name, findings)
		}
	}
	if n, err := admin.DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("the refused clients left %d keys (%v)", n, err)
	}
	for name, rights := range map[string][]any{
		"with INFO": {"+@all", "-@dangerous", "+info"}, "INFO of what is read": {"+@all", "-@dangerous", "+info|server", "+info|replication"},
	} {
		o := as(rights...)
		release(t, acquire(t, openClient(t, rdb, o), locks.Exclusive("a")))
		if id, err := admin.HGet(t.Context(), "{ns}:meta", "server").Result(); err != nil || len(id) != 40 {
			t.Errorf("%s: the space knows the server %q (%v), want its run id", name, id, err)
		}
	}
}

// TestRightThatIsWithdrawnIsReported removes the right to run INFO from a working client, and gives
// it back.
func TestRightThatIsWithdrawnIsReported(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	admin := server.Client(t)
	set := func(right string) {
		t.Helper()
		if err := admin.Do(t.Context(), "ACL", "SETUSER", "app", right).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	log := new(lines)
	c := openClient(t, userClient(t, server, "app", "secret"), locks.Options{
		Namespace: "ns", Lease: 6 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	hold := acquire(t, c, locks.Exclusive("a"))
	said := func(what string) int { return strings.Count(log.text(), what) }
	const hidden, shown = "no longer shows which server it is", "again shows which server it is"
	set("-info")
	eventually(t, "the loss is reported", func() bool { return said(hidden) > 0 })
	if got := log.text(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "+info") {
		t.Errorf("got %s, want an error that names the right", got)
	}
	set("+info")
	eventually(t, "the return is reported", func() bool { return said(shown) > 0 })
	if said(hidden) != 1 || hold.Context().Err() != nil {
		t.Errorf("%d reports, and the work ended with %v; want one, and nothing cut off", said(hidden), hold.Lost())
	}
}
