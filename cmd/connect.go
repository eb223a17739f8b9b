package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// flagKeys maps flags to settings.
var flagKeys = map[string]string{
	"redis": "redis.url",

	"redis-password-file": "redis.password_file",

	"concurrency": "worker.concurrency",
	"queues":      "worker.queues",
}

// load reads the config. When it returns an error, it has already printed the config's problems.
func (t *tool) load(cmd *cobra.Command, paths []string, settingsOnly bool) (*configs.Config, error) {
	options := t.loadOptions(cmd, paths)
	options.SettingsOnly = settingsOnly
	return t.told(readConfig(options))
}

// connection gives access to one installation: its Redis, and the data in it.
type connection struct {
	settings configs.Settings
	rdb      redis.UniversalClient
	ledger   *ledger.Ledger
	queue    *queue.Client
	pusher   *worker.Pusher
	reader   *admin.Reader
}

func (c *connection) Close() error { return c.rdb.Close() }

// connect finds Redis as a worker does, or falls back to a running demo. It checks that this build
// knows the format of the stored data.
func (t *tool) connect(cmd *cobra.Command) (*connection, error) {
	conn, err := t.reach(cmd)
	if err != nil {
		return nil, err
	}
	// A producer has no rights on the namespace; workers check what it puts into a queue.
	if err := conn.ledger.Space().Check(cmd.Context()); err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
		return nil, errors.Join(conn.away(err), conn.Close())
	}
	return conn, nil
}

// reach is connect without the format check.
func (t *tool) reach(cmd *cobra.Command) (*connection, error) {
	ctx := cmd.Context()
	config, err := t.load(cmd, configs.Find(t.configPaths, nil), true)
	if err != nil {
		return nil, err
	}
	settings := config.Settings
	if _, named := config.Origins["redis.url"]; !named {
		if demo := findDemo(ctx); demo != nil {
			fmt.Fprintf(t.stderr, "lockstep: using the running demo (pid %d)\n", demo.PID)
			settings.Redis = configs.Redis{URL: demo.Redis, Namespace: demo.Namespace}
		}
	}
	if settings.Redis.URL == configs.Embedded {
		return nil, refuse("redis.url is %q: that Redis is inside its worker, where no other process reaches it; "+
			"use the worker's page, or a separate Redis", configs.Embedded)
	}
	rdb, err := open(ctx, settings.Redis)
	if err != nil {
		return nil, err
	}
	keys, err := settings.Redis.SignKeys()
	// a user without the right to read the key passes on definitions that workers signed
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, errors.Join(exit(exitConfig, err), rdb.Close())
	}
	conn, err := newConnection(rdb, settings, keys)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return conn, nil
}

func newConnection(rdb redis.UniversalClient, settings configs.Settings, keys *jobs.Keys) (*connection, error) {
	space, err := locks.NewSpace(rdb, settings.Redis.Namespace)
	if err != nil {
		return nil, err
	}
	deliveries, err := queue.New(rdb, settings.Redis.Namespace)
	if err != nil {
		return nil, err
	}
	l := ledger.New(rdb, space)
	l.Sign(keys, nil)
	l.LimitArgs(settings.Limits.ArgsBytes())
	return &connection{settings: settings, rdb: rdb, ledger: l, queue: deliveries, pusher: worker.NewPusher(deliveries, l), reader: admin.NewReader(l).WithQueues(deliveries)}, nil
}

// lockOptions converts the settings of a lock client.
func lockOptions(settings configs.Settings) locks.Options {
	o := locks.Options{
		Namespace: settings.Redis.Namespace, Name: settings.Worker.Name,
		Lease: settings.Locks.Lease, ReserveAfter: settings.Locks.ReserveAfter, Grace: settings.Locks.GraceTime(),
	}
	if o.ReserveAfter == 0 { // none, which is a negative value in package locks
		o.ReserveAfter = -1
	}
	return o
}

// workerLockOptions are lockOptions of a worker, which also sets what the lock space keeps.
func workerLockOptions(settings configs.Settings) locks.Options {
	o := lockOptions(settings)
	o.Keep = locks.Keep{For: settings.Admin.Keep.Holds, Entries: settings.Admin.Keep.Entries}
	if o.Keep.For == 0 || o.Keep.Entries == 0 { // none, which is a negative value in package locks
		o.Keep = locks.Keep{Entries: -1}
	}
	return o
}

// open makes a client and pings Redis.
func open(ctx context.Context, settings configs.Redis) (redis.UniversalClient, error) {
	rdb, err := newClient(settings)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	try, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err = rdb.Ping(try).Err()
	// Redis refuses a PING, like a write, while it cannot write to its disk; it can still be read.
	if err == nil || space.CodeOf(err) == "MISCONF" {
		return rdb, nil
	}
	_ = rdb.Close() // nothing was sent
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if errors.Is(err, redis.Nil) { // PING itself never returns it
		return nil, exit(exitRedis, fmt.Errorf("the Sentinels of %s know no such master: check ?master= in redis.url", settings.SafeURL()))
	}
	if _, secure := errors.AsType[*tlsError](err); secure || unready(err) {
		return nil, lostRedis(settings, err)
	}
	if refused, replied := errors.AsType[redis.Error](err); replied {
		server, login := "Redis", "user and password in redis.url or redis.password_file"
		if strings.Contains(err.Error(), "all sentinels") {
			// each sentinel has refused; one reply is enough
			server, login, err = "Sentinel", "redis.sentinel.user and redis.sentinel.password_file", refused
		}
		return nil, exit(exitRedis, fmt.Errorf("the %s at %s refuses: %w; check %s", server, settings.SafeURL(), err, login))
	}
	if address := plainToTLS(ctx, settings); address != "" {
		plain, _ := settings.Topology()
		return nil, exit(exitRedis, fmt.Errorf("%s uses TLS, and redis.url is %s, which does not: write %s:// there",
			address, settings.SafeURL(), strings.Replace(plain, "redis", "rediss", 1)))
	}
	return nil, exit(exitRedis, fmt.Errorf("no Redis answers at %s: %w; start it, or name another with --redis, REDIS_URL or redis.url",
		settings.SafeURL(), err))
}

// away is [lostRedis] for this installation.
func (c *connection) away(err error) error { return lostRedis(c.settings.Redis, err) }

// lostRedis gives the exit code of an unreachable Redis to a network error and to the reply of a
// server that is not ready, or takes no writes.
func lostRedis(settings configs.Redis, err error) error {
	var network net.Error
	var known *exitError
	var secure *tlsError
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &secure): // one of several: the others are of other sentinels or nodes
		return exit(exitRedis, fmt.Errorf("no TLS connection to Redis at %s: %w", settings.SafeURL(), secure))
	case unready(err):
		return exit(exitRedis, fmt.Errorf("the Redis at %s is not ready: %w; try again", settings.SafeURL(), err))
	case space.CodeOf(err) == "MISCONF":
		return exit(exitRedis, fmt.Errorf("the Redis at %s takes no writes: %w; make room on its disk, or see in its log why it cannot write",
			settings.SafeURL(), err))
	case space.CodeOf(err) == "OOM":
		return exit(exitRedis, fmt.Errorf("the Redis at %s takes no writes: %w; raise its maxmemory, or make room", settings.SafeURL(), err))
	case errors.As(err, &network) || errors.Is(err, io.EOF):
		return exit(exitRedis, fmt.Errorf("lost connection to Redis at %s: %w", settings.SafeURL(), err))
	}
	return err
}

// unready reports whether Redis replied that it cannot serve now and soon may, as while it loads
// its data or fails over.
func unready(err error) bool {
	return space.CodeOf(err) != "" && space.Passing(err) && !space.Lasting(err)
}

// now returns the server's time, which dates all records.
func (c *connection) now(ctx context.Context) (time.Time, error) {
	now, err := c.rdb.Time(ctx).Result()
	if err != nil {
		return time.Time{}, fmt.Errorf("ask Redis for its time: %w", err)
	}
	return now, nil
}

// limits converts permits for the lock space.
func limits(permits map[string]configs.Permit) map[string]locks.PermitLimit {
	out := make(map[string]locks.PermitLimit, len(permits))
	for name, permit := range permits {
		out[name] = locks.PermitLimit{Permits: permit.Limit, Version: permit.Version}
	}
	return out
}
