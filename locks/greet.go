package locks

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// recovery decides how long a grace period lasts: Options.Grace, or the longest lease that this
// client knows of plus the time for which the topology may have two masters.
type recovery struct {
	fixed   time.Duration
	margin  time.Duration // set by Open before the first command that needs it
	longest atomic.Int64  // ms
}

// args returns two arguments of the scripts: the least grace period, and the time that is added to
// the longest lease in use. Both in ms.
func (r *recovery) args() (least, margin int64) {
	if r.fixed > 0 {
		return r.fixed.Milliseconds(), 0
	}
	margin = r.margin.Milliseconds()
	return r.longest.Load() + margin, margin
}

// noteLease takes the longest lease in use from a reply. The client's own lease counts, too.
func (r *recovery) noteLease(longest int64, own time.Duration) {
	r.longest.Store(max(longest, own.Milliseconds()))
}

// first returns how long a space that this client creates grants nothing, as an argument of
// open.lua. knew means that the client knew another space.
func (r *recovery) first(knew bool) string {
	least, _ := r.args()
	switch {
	case r.fixed < 0 && !knew:
		return "0"
	case r.fixed > 0 || knew:
		return strconv.FormatInt(least, 10)
	}
	return ""
}

// A greeter makes the space check which server it is on, on every new connection and before
// anything else is sent over it. So no grant comes from a server that may lack the last writes of
// another one.
type greeter struct {
	keys     []string
	script   *redis.Script
	build    int // the format that its build writes
	recovery *recovery
	identity *identity
	changed  func()                // called if it was another server
	reload   func(context.Context) // for a cluster: learn which node has which slots, soon
}

func (g *greeter) greet(ctx context.Context, via redis.Scripter) error {
	least, margin := g.recovery.args()
	r, err := space.RunFor(ctx, via, g.build, g.script, g.keys, least, margin)
	if err != nil {
		return err
	}
	switch r.At(0) {
	case "changed":
		g.changed()
		g.identity.shows(true, "")
	case "known":
		g.identity.shows(true, "")
	case "hidden":
		g.identity.shows(false, r.At(1))
	}
	return nil
}

// An identity reports, once for each change, whether the server shows its identity. Without that a
// new server is not detected. [CheckServer] checks this before a client is opened, but the right to
// run INFO may be withdrawn later.
type identity struct {
	log    *slog.Logger
	hidden atomic.Bool
}

// shows records what a script found; failed is the error of INFO.
func (i *identity) shows(shown bool, failed string) {
	switch was := i.hidden.Swap(!shown); {
	case !shown && !was:
		i.log.Error("this Redis no longer shows which server it is: if it is restarted or replaced, a lock may have two holders; "+
			"grant the right +info", slog.String("error", failed))
	case shown && was:
		i.log.Info("this Redis again shows which server it is")
	}
}

// connected returns the setup of a new connection of a plain client. first is the caller's own, or
// nil. A connection that could not be greeted is not used.
func (g *greeter) connected(first func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		if first != nil {
			if err := first(ctx, cn); err != nil {
				return err
			}
		}
		return g.greet(ctx, cn)
	}
}

// nodes makes a watched client for every node of a cluster. newClient is the caller's own
// constructor, or nil.
func (g *greeter) nodes(newClient func(*redis.Options) *redis.Client) func(*redis.Options) *redis.Client {
	if newClient == nil {
		newClient = redis.NewClient
	}
	return func(o *redis.Options) *redis.Client {
		n := &node{greeter: g}
		o.OnConnect = n.connected(o.OnConnect)
		n.client = newClient(o)
		n.client.AddHook(n)
		return n.client
	}
}

// A node is one server of a cluster. Connections to it may be older than its role as the master of
// the space. So it is greeted before the first script, and no script is sent while it reports that
// it is not the master.
type node struct {
	greeter *greeter
	client  *redis.Client
	ours    atomic.Bool // it was greeted as the master of the space, and has not denied that since
}

// greeting marks the context of a greeting, because that is a script itself.
type greeting struct{}

func (n *node) greet(ctx context.Context, via redis.Scripter) error {
	err := n.greeter.greet(context.WithValue(ctx, greeting{}, true), via)
	n.ours.Store(err == nil)
	return err
}

func (n *node) connected(first func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		if first != nil {
			if err := first(ctx, cn); err != nil {
				return err
			}
		}
		var refused redis.Error
		if err := n.greet(ctx, cn); !errors.As(err, &refused) {
			return err
		}
		return nil // it is not the master of the space, but can name the one that is
	}
}

// DialHook changes nothing.
func (n *node) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook greets before a script if needed.
func (n *node) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := n.prepare(ctx, cmd); err != nil {
			cmd.SetErr(err)
			return err // what the script would have got, usually MOVED
		}
		err := next(ctx, cmd)
		n.learn(ctx, err)
		return err
	}
}

// ProcessPipelineHook does the same for pipelined scripts.
func (n *node) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		// A script after ASKING was redirected by the old owner of a moving slot: its keys are all
		// here, as they were there.
		if err := n.prepare(ctx, cmds[0]); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			n.greeter.reload(ctx) // go-redis does not redirect a pipeline that a hook has ended
			return err
		}
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			n.learn(ctx, cmd.Err())
		}
		return err
	}
}

func (n *node) prepare(ctx context.Context, cmd redis.Cmder) error {
	name := cmd.Name()
	if n.ours.Load() || name != "evalsha" && name != "eval" || ctx.Value(greeting{}) != nil {
		return nil
	}
	return n.greet(ctx, n.client)
}

// learn notices from the error of a command that the server is no longer the master of the space,
// or may have stopped and been replaced. go-redis would keep sending to a server that does not
// answer, or that has lost sight of the cluster, until its view of the slots is a minute old.
func (n *node) learn(ctx context.Context, err error) {
	var reply redis.Error
	switch code := space.CodeOf(err); {
	case code == "MOVED" || code == "READONLY":
		n.ours.Store(false)
	case code == "CLUSTERDOWN" || err != nil && !errors.As(err, &reply) && !errors.Is(err, context.Canceled):
		n.greeter.reload(ctx)
	}
}
