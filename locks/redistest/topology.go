package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

const (
	// settleTimeout bounds what the servers of a topology do among themselves, such as finding one
	// another and agreeing on a new master. It takes seconds on an idle machine; the rest is for a
	// busy one.
	settleTimeout = 90 * time.Second

	// askTimeout bounds one question to one server, which takes less than a millisecond unless the
	// machine is busy.
	askTimeout = 5 * time.Second
)

// ask sends commands to a server, bypassing all proxies.
func (s *Server) ask(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	o := s.RedisOptions()
	o.PoolSize, o.PipelinePoolSize = 1, -1
	rdb := redis.NewClient(o)
	defer rdb.Close()
	return f(ctx, rdb)
}

// settle repeats f until it returns no error. An error of f says what is not settled yet.
func settle(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error // the last one not caused by ctx
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// launchAll starts n servers at once. After an error it also returns those that were started.
func launchAll(ctx context.Context, k kind, n int, options func(i int) Options) ([]*Server, error) {
	servers := make([]*Server, n)
	var starting errgroup.Group
	for i := range servers {
		starting.Go(func() (err error) {
			servers[i], err = launch(ctx, k, options(i))
			return err
		})
	}
	err := starting.Wait()
	started := servers[:0]
	for _, s := range servers {
		if s != nil {
			started = append(started, s)
		}
	}
	return started, err
}

func stopAll(servers []*Server) error {
	var stopping errgroup.Group
	errs := make([]error, len(servers))
	for i, s := range servers {
		stopping.Go(func() error {
			errs[i] = s.Stop()
			return nil
		})
	}
	_ = stopping.Wait()
	return errors.Join(errs...)
}

func addresses(servers []*Server) []string {
	out := make([]string, len(servers))
	for i, s := range servers {
		out[i] = s.address()
	}
	return out
}

// fields parses a reply of INFO or CLUSTER INFO: one line per fact, name:value.
func fields(text string) map[string]string {
	out := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[name] = value
		}
	}
	return out
}

// checkReplica reports what a server lacks to be a replica that can take over from a master.
func (s *Server) checkReplica(ctx context.Context, master *Server) error {
	return s.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
		info, err := rdb.Info(ctx, "replication").Result()
		if err != nil {
			return err
		}
		f := fields(info)
		if f["role"] != "slave" || f["master_port"] != strconv.Itoa(master.port) || f["master_link_status"] != "up" {
			return fmt.Errorf("%s is not a replica of %s: role %q, link to port %s %q", s.address(), master.address(),
				f["role"], f["master_port"], f["master_link_status"])
		}
		return nil
	})
}

// replicated has the settings of every server with a replica. A first copy begins at once, not
// after the 5 s in which more replicas could join, and a lost one is noticed within a second. A
// replica reads a copy from its connection: a file it would sync, and answer nothing meanwhile.
var replicated = []string{"repl-diskless-sync-delay 0", "repl-diskless-load swapdb", "repl-ping-replica-period 1"}
