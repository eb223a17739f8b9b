package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ours is the name of the library that the others are compared with.
const ours = "locks"

// peer is one of the libraries.
type peer struct {
	name   string
	module string   // to look up its version
	sends  []string // the commands that its client sends itself; all others run inside its scripts
	open   opener
	shared opener // for locks that several goroutines of a client request
}

// opener opens a client of a library.
type opener func(ctx context.Context, addr string, lease time.Duration) (locker, error)

var peers = []peer{
	{ours, "lockstep", []string{"evalsha"}, openOurs, openOurs},
	{"redislock", "github.com/bsm/redislock", []string{"evalsha"}, openRedislock, openRedislock},
	{"redsync", "github.com/go-redsync/redsync/v4", []string{"evalsha", "set"}, openRedsync, openRedsync},
	{"rueidislock", "github.com/redis/rueidis", []string{"evalsha"}, openRueidislock, openRueidislockShared},
}

func peerOf(name string) (peer, error) {
	for _, p := range peers {
		if p.name == name {
			return p, nil
		}
	}
	return peer{}, fmt.Errorf("unknown library %q", name)
}

// locker is a library as one process uses it: one client, shared by all goroutines.
type locker interface {
	// lock waits, in the library's own way, until it has the lock of a name. It returns an error
	// when ctx ends.
	lock(ctx context.Context, name string) (held, error)
	// close releases what is still held, if the library keeps track of it, and closes the
	// connections.
	close(ctx context.Context) error
}

// held is a lock that was granted.
type held struct {
	ctx    context.Context // ends when the library reports the loss of the lock
	unlock func() error
	extend func(context.Context) error // renews by hand; nil if the library renews by itself
}

// quietly is a logger for go-redis, which would write to stderr when connections break, as they do
// here.
type quietly struct{}

// Printf does nothing.
func (quietly) Printf(context.Context, string, ...any) {}

// clientTo returns a client on default options.
func clientTo(addr string) *redis.Client { return redis.NewClient(&redis.Options{Addr: addr}) }

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
