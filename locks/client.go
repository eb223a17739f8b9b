package locks

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/bootclock"
	"lockstep/locks/space"
)

// Options are the settings of a [Client]. The zero value is a good start.
type Options struct {
	// Namespace names the lock space; clients with the same namespace compete. 1 to 64 letters,
	// digits, - and _. Default "lockstep".
	Namespace string

	// Name is the first part of the IDs of this client's sessions, cut to 64 bytes. Characters
	// other than letters, digits, '_', '.' and '-' become '-'. Default: the host's name.
	Name string

	// Lease is how long the holds of this client outlive it when it dies: 2 s to 10 m, 15 s by
	// default. It is renewed every third of that. The holds survive an outage of Redis of up to 2/3
	// of the lease less [Client.Cutoff]. A default Redis Cluster needs 16 to 17 s to fail over: use
	// 40 s there.
	Lease time.Duration

	// ReserveAfter is how long later requests may pass a waiting request of this client while part
	// of its bundle is still held. After that they wait behind it, so large bundles do not starve.
	// The default is 1 s. A negative value means at once: strictly first in, first out.
	ReserveAfter time.Duration

	// Grace is how long nothing is granted after Redis has lost data, while every client re-asserts
	// what it holds. The default is the longest lease in use, plus the time for which two masters
	// may coexist on Sentinel and Cluster. A value that is set must be at least the lease. It also
	// keeps every new space from granting for that long, so that a client that never knew an
	// emptied space cannot be faster than the holders in it. Without it, a new space waits for 1 s
	// if the server is younger than the lease. A negative value removes even that wait.
	Grace time.Duration

	// Keep bounds what Redis keeps of the holds and waits that have ended, so that [Space.Past] can
	// list them. The space has one pair of bounds: those of the last client that was opened with
	// some. The zero value leaves them as they are; a space without any then keeps 100,000 entries
	// for 48 h at most. With negative Entries it keeps none.
	Keep Keep

	// Card is what a session publishes about itself: a JSON object of at most 16 KiB. Default
	// {host, pid, started_at}.
	Card json.RawMessage

	// Logger receives one line per change of state. Default: none.
	Logger *slog.Logger

	// Instrument is called by Open with each of the two clients that it makes for itself, before
	// anything is sent. It adds hooks, such as those of redisotel.InstrumentTracing. The hooks of
	// the client that Open receives cannot be carried over, because go-redis offers no way to read
	// them. An error makes Open fail. May be nil.
	Instrument func(redis.UniversalClient) error

	// Extension is for a program that needs an [Extension].
	Extension ExtensionOptions

	clock *clock // nil: the machine's; tests set another one

	impersonate *space.Impersonator // nil: this build; tests set another one
}

// everyBuild is what clients impersonate unless their options name a build. Tests set it.
var everyBuild *space.Impersonator

const (
	defaultNamespace = "lockstep"
	defaultLease     = 15 * time.Second
	// Below minLease, a pause of the garbage collector or the network is an outage.
	minLease            = 2 * time.Second
	maxLease            = 10 * time.Minute
	defaultReserveAfter = time.Second
	maxCard             = 16 << 10
	maxSessionName      = 64
	// minTry is for commands without a deadline of their own: one slow moment is not an outage.
	minTry = time.Second
	// A lost packet of a handshake is sent again within this time. A dial during an outage hangs
	// longer.
	maxDial = 2 * time.Second
	// A node of a cluster that is silent for this long may have been replaced.
	maxSilence = defaultLease / 6
	// openingTrips is about how many round trips the opening of a session takes, on two new
	// connections.
	openingTrips = 10
)

// A Client takes locks. All its holds belong to one session in Redis, which one command every third
// of the lease keeps alive. It is safe for concurrent use. A process needs one per lock space.
type Client struct {
	rdb    redis.UniversalClient // for everything but renewals; owned
	beat   redis.UniversalClient // for renewals, so that nothing can delay them; owned
	space  *Space
	sender *sender // for acquires and releases

	acquireScript, releaseScript space.Prepared

	namespace string
	name      string
	lease     time.Duration
	patience  time.Duration // Options.ReserveAfter with its default; 0: strictly in order
	bounds    string        // Options.Keep as the scripts read it
	rebind    int           // 1: Options.Keep replaces the bounds of the space, else 0
	try       time.Duration // how long one command may take before it is sent again
	// opened is how long the first opening of a session took. It is written before any goroutine
	// runs.
	opened    time.Duration
	extension ExtensionOptions
	log       *slog.Logger
	clock     clock
	recovery  recovery
	identity  identity
	follower  *follower     // nil unless Sentinel names the master
	highest   atomic.Uint64 // the highest token seen
	format    int           // the highest format that the build can write
	written   atomic.Int64  // the format of the space when it was last read; 0 before that

	reaper  *reaper
	stop    context.CancelFunc
	closing chan struct{}  // closed by Close
	closed  chan struct{}  // closed when Close is done
	failed  chan struct{}  // closed when failure is set
	running sync.WaitGroup // every goroutine of this client

	mu      sync.Mutex
	session *session      // accepts new work, nil while there is none; guarded by mu
	last    *session      // the one opened last, whatever its state; guarded by mu
	changed chan struct{} // closed and replaced when session changes; guarded by mu
	outage  error         // why there is no session; guarded by mu
	// gen is the generation in which this client last asserted what it knows. Guarded by mu.
	gen      generation
	card     json.RawMessage        // guarded by mu
	declared map[string]PermitLimit // by this client; guarded by mu

	redeclared struct { // progress after the last loss of data; guarded by mu
		gen   generation
		names []string // still to be declared in it
	}
	failure  error // why no session can be opened anymore; guarded by mu
	finished bool  // Close was called: nothing may start anymore; guarded by mu
}

// Open connects to Redis, opens a session and starts the watchdog that keeps it alive. It copies
// the options of rdb into two clients of its own, without their hooks (see [Options].Instrument);
// the caller keeps and closes rdb. rdb must be a plain client, a Sentinel client (which must
// outlive this one), or a cluster client. ctx bounds only the opening.
func Open(ctx context.Context, rdb redis.UniversalClient, o Options) (*Client, error) {
	if o.impersonate == nil {
		o.impersonate = everyBuild
	}
	c, err := newClient(o)
	if err != nil {
		return nil, fmt.Errorf("open lock client: %w", err)
	}
	if err = c.inspect(ctx, rdb); err != nil {
		return nil, fmt.Errorf("open lock client: %w", err)
	}
	keys := space.KeysOf(c.namespace)
	if rdb, ok := rdb.(*redis.Client); ok {
		c.follower = newFollower(rdb.Options(), c.log)
	}
	// Before the first connection: later answers are compared with this master.
	if c.follower != nil {
		try, cancel := context.WithTimeout(ctx, c.try)
		err := c.follower.ask(try)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("open lock client: ask sentinel for the master: %w", err)
		}
	}
	greeter := &greeter{keys: keys, script: space.Greet.Redis(), build: c.format, recovery: &c.recovery, identity: &c.identity, changed: c.Extension().Doubt}
	if o.impersonate != nil {
		greeter.script = o.impersonate.Script(space.Greet.Redis())
	}
	if c.rdb, err = c.ownClient(rdb, greeter, c.try, 0); err != nil {
		return nil, fmt.Errorf("open lock client: %w", err)
	}
	// A pool that has seen as many failed dials as it has slots refuses commands for a second. So
	// the pool for renewals has many slots, and few connections.
	if c.beat, err = c.ownClient(rdb, greeter, tryOf(c.lease), 1000); err != nil {
		return nil, fmt.Errorf("open lock client: %w", errors.Join(err, c.rdb.Close()))
	}
	if o.Instrument != nil {
		if err := errors.Join(o.Instrument(c.rdb), o.Instrument(c.beat)); err != nil {
			return nil, fmt.Errorf("open lock client: Options.Instrument: %w", errors.Join(err, c.rdb.Close(), c.beat.Close()))
		}
	}
	if as := o.impersonate; as != nil {
		c.rdb = &space.Impersonator{UniversalClient: c.rdb, Format: as.Format, Script: as.Script}
		c.beat = &space.Impersonator{UniversalClient: c.beat, Format: as.Format, Script: as.Script}
	}
	c.space = spaceOn(c.rdb, keys)
	c.sender = newSender(c.rdb, keys, c.lease, c.try, c.spawn)
	c.acquireScript = space.Prepare(space.As(c.rdb, space.Acquire.Redis()), keys)
	c.releaseScript = space.Prepare(space.As(c.rdb, space.Release.Redis()), keys)
	began := time.Now()
	s, listener, err := c.openSession(ctx, c.try)
	if err != nil {
		return nil, fmt.Errorf("open lock client: %w", errors.Join(err, c.rdb.Close(), c.beat.Close()))
	}
	c.opened = time.Since(began)
	c.sender.took(c.opened / openingTrips)
	// The client lives until Close, not only until the context of its opening ends.
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	c.install(s)
	c.running.Go(func() { c.live(ctx, s, listener) })
	c.running.Go(func() { c.reaper.run(ctx, c.log, c.reap) })
	if c.follower != nil {
		c.running.Go(func() { c.follower.run(ctx, c.lease) })
	}
	return c, nil
}

func newClient(o Options) (*Client, error) {
	c := &Client{
		namespace: o.Namespace, name: o.Name, lease: o.Lease, patience: o.ReserveAfter, extension: o.Extension, log: o.Logger,
		clock:   clock{now: time.Now, boot: bootclock.Now},
		reaper:  &reaper{wake: make(chan struct{}, 1)},
		closing: make(chan struct{}), closed: make(chan struct{}), changed: make(chan struct{}),
		declared: make(map[string]PermitLimit), failed: make(chan struct{}), format: space.Format,
	}
	if o.impersonate != nil {
		c.format = o.impersonate.Format
	}
	if o.clock != nil {
		c.clock = *o.clock
	}
	if c.namespace == "" {
		c.namespace = defaultNamespace
	}
	if err := space.CheckNamespace(c.namespace); err != nil {
		return nil, err
	}
	if c.lease == 0 {
		c.lease = defaultLease
	}
	if c.lease < minLease || c.lease > maxLease {
		return nil, fmt.Errorf("%w: Options.Lease is %s; it must be %s to %s", ErrInvalid, c.lease, minLease, maxLease)
	}
	if c.recovery.fixed = o.Grace; o.Grace > 0 && o.Grace < c.lease {
		return nil, fmt.Errorf("%w: Options.Grace is %s; it must be at least the lease, %s: a client that is cut off from Redis may continue for that long",
			ErrInvalid, o.Grace, c.lease)
	}
	c.recovery.noteLease(0, c.lease)
	switch {
	case c.patience == 0:
		c.patience = defaultReserveAfter
	case c.patience < 0:
		c.patience = 0
	}
	var err error
	if c.bounds, err = o.Keep.Text(); err != nil {
		return nil, err
	}
	if o.Keep != (Keep{}) {
		c.rebind = 1
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.identity.log = c.log
	c.try = max(minTry, c.lease/renewalsPerLease)
	host, hostErr := os.Hostname()
	if c.name == "" {
		c.name = host
	}
	c.name = cleanName(c.name)
	if o.Card == nil {
		if hostErr != nil {
			host = c.name
		}
		o.Card, err = json.Marshal(map[string]any{
			"host": host, "pid": os.Getpid(), "started_at": time.Now().UTC().Format(time.RFC3339),
		})
		if err != nil {
			return nil, err
		}
	}
	c.card, err = checkCard(o.Card, c.format)
	return c, err
}

// cleanName replaces the characters of a name that a session ID must not contain.
func cleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return '-'
	}, name)
	if len(name) > maxSessionName {
		name = name[:maxSessionName]
	}
	if name == "" {
		name = "unnamed"
	}
	return name
}

// checkCard returns a card as it is stored, with the format that the build can write.
func checkCard(card json.RawMessage, format int) (json.RawMessage, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, card); err != nil {
		return nil, fmt.Errorf("%w: Options.Card is not JSON: %w", ErrInvalid, err)
	}
	switch {
	case !bytes.HasPrefix(compact.Bytes(), []byte("{")):
		return nil, fmt.Errorf("%w: Options.Card must be a JSON object, not %.20s", ErrInvalid, compact.Bytes())
	case compact.Len() > maxCard:
		return nil, fmt.Errorf("%w: Options.Card has %d bytes; at most %d are kept", ErrInvalid, compact.Len(), maxCard)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(compact.Bytes(), &members); err != nil {
		return nil, fmt.Errorf("%w: Options.Card is not a JSON object: %w", ErrInvalid, err)
	}
	if _, taken := members["format"]; taken {
		return nil, fmt.Errorf("%w: Options.Card has a member \"format\", which the client writes itself; give it another name", ErrInvalid)
	}
	return space.Stamp(compact.Bytes(), format), nil
}

// ownClient makes a client to the same server as rdb that sends each command once and keeps
// deadlines. This package sends again itself, because it knows which commands are harmless to send
// twice, and for how long that makes sense. slots sets the size of the pool; 0 leaves it. Every
// connection is greeted, unless g is nil. On Sentinel, connections are also closed when another
// server becomes the master.
func (c *Client) ownClient(rdb redis.UniversalClient, g *greeter, try time.Duration, slots int) (redis.UniversalClient, error) {
	switch rdb := rdb.(type) {
	case *redis.Client:
		o := *rdb.Options()
		o.MaxRetries, o.DialerRetries = -1, 1
		o.PushNotificationProcessor = nil // it belongs to one client
		o.ContextTimeoutEnabled = true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = min(try, maxDial), try, try, try
		o.MinIdleConns, o.PipelinePoolSize = 0, -1
		if g != nil {
			o.OnConnect = g.connected(o.OnConnect)
		}
		if slots > 0 {
			o.PoolSize, o.MaxConcurrentDials, o.MaxIdleConns, o.MaxActiveConns = slots, slots, 1, 0
		}
		if c.follower == nil || g == nil {
			return redis.NewClient(&o), nil
		}
		o.Dialer = c.follower.connect
		client := redis.NewClient(&o)
		client.AddHook(c.follower)
		return client, nil
	case *redis.ClusterClient:
		o := *rdb.Options()
		// A cluster client retries up to MaxRedirects times. It needs that to follow slots that
		// move.
		o.MaxRetries, o.MaxRedirects, o.DialerRetries = -1, 3, 1
		o.ContextTimeoutEnabled = true
		try = min(try, maxSilence)
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = min(try, maxDial), try, try, try
		o.MinIdleConns, o.PipelinePoolSize = 0, -1
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false // read the master only
		if slots > 0 {
			o.PoolSize, o.MaxConcurrentDials, o.MaxIdleConns, o.MaxActiveConns = slots, slots, 1, 0
		}
		if g == nil {
			return redis.NewClusterClient(&o), nil
		}
		own := *g // each cluster client has its own view of the slots
		o.NewClient = own.nodes(o.NewClient)
		client := redis.NewClusterClient(&o)
		own.reload = func(ctx context.Context) {
			client.ReloadState(ctx)
			rdb.ReloadState(ctx) // the caller's own commands meet the same node
		}
		return client, nil
	}
	return nil, fmt.Errorf("%w: a %T cannot hold a lock space; use a plain, Sentinel or cluster client", ErrInvalid, rdb)
}

// call sends a script once, for at most c.try.
func (c *Client) call(ctx context.Context, script space.Script, args ...any) (space.Reply, error) {
	return c.callWithin(ctx, c.try, script, args...)
}

func (c *Client) callWithin(ctx context.Context, try time.Duration, script space.Script, args ...any) (space.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, try)
	defer cancel()
	return space.Run(ctx, c.rdb, script, c.space.keys, args...)
}

// spawn starts a goroutine that Close waits for, unless the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished {
		return false
	}
	c.running.Go(f)
	return true
}

// live keeps a session open: when one has ended, it opens the next.
func (c *Client) live(ctx context.Context, s *session, listener *subscriber) {
	for {
		c.keep(ctx, s, listener)
		var pause space.Backoff
		for {
			select {
			case <-c.closing:
				return
			default:
			}
			var err error
			if s, listener, err = c.openSession(ctx, c.reopenTry()); err == nil {
				break
			}
			if errors.Is(err, ErrFormat) {
				c.fail(err)
				return
			}
			c.mu.Lock()
			c.outage = err
			c.mu.Unlock()
			c.log.Debug("opening a lock session", slog.Any("error", err))
			if !pause.Wait(ctx.Done()) {
				return
			}
		}
		c.log.Info("lock session opened", slog.String("session", string(s.id)))
		c.install(s)
		c.mu.Lock()
		card, changed := c.card, !bytes.Equal(c.card, s.card)
		c.mu.Unlock()
		if changed { // by a SetCard that found no session
			if _, err := c.call(ctx, space.Card, string(s.id), string(card)); err != nil {
				c.log.Warn("setting the card of a lock session", slog.Any("error", err))
			}
		}
	}
}

// keep runs everything that belongs to a session, and waits until the session is dead. Commands
// that still hang in the network must not keep the next session from opening, so it does not wait
// for them: Close does.
func (c *Client) keep(ctx context.Context, s *session, listener *subscriber) {
	c.running.Go(func() {
		work, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { defer cancel(); s.dog.run(ctx) })
		running.Go(func() { listener.run(work) })
		running.Go(func() { s.reconcile(work) })
		running.Wait()
	})
	select {
	case <-ctx.Done():
	case <-s.dead:
	}
}

// reopenTry is how long one step of opening may take when there was a session before. Without a
// session nothing can be lost, and a command that hangs on a connection from before the outage
// should be abandoned soon after it, however long the lease is. Where the network is slow, the
// first opening was slow, too.
func (c *Client) reopenTry() time.Duration { return min(c.try, max(minTry, 3*c.opened)) }

// openSession subscribes to a new session's channel and opens the session; each step may take as
// long as try.
func (c *Client) openSession(ctx context.Context, try time.Duration) (*session, *subscriber, error) {
	const tries = 5 // IDs are random, so a second one that is taken points to another problem
	for range tries {
		id := SessionID(c.name + "." + randomName())
		s := newSession(c, id)
		listener, err := c.subscribe(ctx, s, try)
		if err != nil {
			return nil, nil, err
		}
		c.mu.Lock()
		s.card = c.card
		knew := c.last != nil
		c.mu.Unlock()
		s.dog.from = c.clock.read()
		r, err := c.callWithin(ctx, try, space.Open, string(id), c.lease.Milliseconds(), string(s.card), c.newSpace(), c.recovery.first(knew),
			c.bounds, c.rebind)
		if err == nil && r.At(0) == "open" {
			s.setClock(serverClock{space.Time(r.NumberAt(1)), s.dog.from})
			opened := generation{r.At(2), r.At(3)}
			// Redis may have lost the limits while there was no session.
			if err := c.redeclareWithin(ctx, try, opened); err != nil {
				return nil, nil, errors.Join(err, listener.sub.Close())
			}
			if s.gen = c.begins(opened, r.NumberAt(5) == 1); s.gen != opened {
				s.dog.hurry()
			}
			c.recovery.noteLease(r.NumberAt(4), c.lease)
			c.written.Store(r.NumberAt(6))
			return s, listener, nil
		}
		_ = listener.sub.Close()
		if err != nil {
			return nil, nil, err
		}
		if r.At(0) != "taken" {
			return nil, nil, space.Unexpected("open", r)
		}
	}
	return nil, nil, fmt.Errorf("%d random session ids in a row are taken", tries)
}

// newSpace returns an ID for a space that this client may have to create, and its format. If the
// client has known a format, that one is used, since other sessions of the lost space may be of a
// build that knows no higher one.
func (c *Client) newSpace() string {
	if written := c.written.Load(); written > 0 {
		return rand.Text() + "\x1f" + strconv.FormatInt(written, 10)
	}
	return rand.Text()
}

// begins returns the generation in which a session begins that was opened in the given one. If the
// client knew another one, Redis lost data while there was no session. No hold is left, but the
// program may know more ([ExtensionOptions].Recover). If the grace period still runs, the session
// begins in the old one, so that its first renewal makes it re-assert all of that.
func (c *Client) begins(gen generation, still bool) generation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if knew := c.gen; knew != gen && knew != (generation{}) && c.extension.Recover != nil {
		if still {
			return knew
		}
		c.log.Error("redis lost data while no session was open, and it is too late to re-assert what this client knew")
	}
	c.gen = gen
	return gen
}

// randomName returns 8 random characters of [a-z0-9].
func randomName() string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	name := make([]byte, 8)
	_, _ = rand.Read(name) // never fails
	for i, b := range name {
		// The distribution is slightly uneven; the space refuses an ID that it knows.
		name[i] = letters[int(b)%len(letters)]
	}
	return string(name)
}

// install makes a session the current one.
func (c *Client) install(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.last = s, s
	c.outage = nil
	close(c.changed)
	c.changed = make(chan struct{})
}

// fail records that no further session can be opened.
func (c *Client) fail(err error) {
	c.mu.Lock()
	c.failure = err
	close(c.failed)
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
}

// Failed returns a channel that is closed when the client can never open a session again, because a
// newer build has raised the format of the space ([ErrFormat]). [Client.Err] then returns the
// reason. The client must still be closed.
func (c *Client) Failed() <-chan struct{} { return c.failed }

// Err returns why the client has failed permanently, or nil while it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// retire stops new work from beginning on a session.
func (c *Client) retire(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == s {
		c.session = nil
	}
}

// current returns the live session. Without one, the error is ErrClosed or ErrNoSession.
func (c *Client) current() (*session, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.finished:
		return nil, nil, ErrClosed
	case c.session != nil:
		return c.session, nil, nil
	case c.failure != nil:
		return nil, nil, fmt.Errorf("%w: no session can be opened: %w", ErrLost, c.failure)
	case c.outage != nil:
		return nil, c.changed, fmt.Errorf("%w: %w", ErrNoSession, c.outage)
	}
	return nil, c.changed, ErrNoSession
}

// reap handles due entries of the space.
func (c *Client) reap(ctx context.Context) (time.Duration, error) {
	r, err := c.call(ctx, space.Reap)
	if err != nil {
		return 0, err
	}
	return space.Millis(r.NumberAt(0)), nil
}

func (c *Client) readSession(ctx context.Context, id SessionID) (*Listing, error) {
	ctx, cancel := context.WithTimeout(ctx, c.lease)
	defer cancel()
	return c.space.Read(ctx, id)
}

// Session returns the ID of the current session, or of the last one while a new one cannot be
// opened.
func (c *Client) Session() SessionID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.id
}

// Lease returns the lease in use.
func (c *Client) Lease() time.Duration { return c.lease }

// Cutoff returns how long before its lease ends work is canceled, so that it can react in time.
func (c *Client) Cutoff() time.Duration { return cutoffOf(c.lease) }

// Space returns the lock space, for reading. It uses this client's connections, until the client is
// closed.
func (c *Client) Space() *Space { return c.space }

// Close ends the session, which releases everything that belongs to it, and waits for every
// goroutine. The contexts of holds that still exist end with the cause [ErrClosed], so end the work
// first. Close takes no longer than the rest of the lease, and no longer than ctx allows. If Redis
// does not reply within that time, the error says so, and the holds pass on when the lease ends.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.finished {
		c.mu.Unlock()
		<-c.closed // a second call waits for the first, which its own context bounds
		return nil
	}
	c.finished = true
	s := c.last
	left := s.dog.left()
	close(c.closing)
	c.mu.Unlock()
	defer close(c.closed)

	var err error
	if s.dog.now() != ended { // otherwise its lease has run out in Redis, too
		s.dog.lose(ended, ErrClosed)
		// This waits for a page of an assertion that is under way; no other page follows.
		s.asserting.Lock()
		s.asserting.Unlock() //nolint:staticcheck // it is the waiting that is wanted
		// Once the lease is over, Redis has ended the session by itself, or will do so before it
		// replies to any other command.
		bounded, cancel := context.WithTimeout(ctx, max(left, minTry))
		err = c.closeSession(bounded, s)
		cancel()
	}
	c.stop()
	// Closing the connections ends commands that are in flight.
	err = errors.Join(err, c.rdb.Close(), c.beat.Close())
	c.running.Wait()
	if err != nil {
		return fmt.Errorf("close lock client: %w", err)
	}
	return nil
}

// closeSession ends a session in Redis, some hundred holds per call.
func (c *Client) closeSession(ctx context.Context, s *session) error {
	err := space.Insist(space.Backoff{}, func() (done bool, err error) {
		r, err := c.call(ctx, space.Close, string(s.id))
		return r.At(0) == "ended" || err != nil && space.Over(err), err
	}, ctx.Done())
	if err != nil {
		return fmt.Errorf("session %s was not ended, its holds pass on when the lease ends: %w", s.id, err)
	}
	return nil
}
