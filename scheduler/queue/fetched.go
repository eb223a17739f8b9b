package queue

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/scheduler/ledger"
)

// fetchedKey is a HASH in the slot of a queue: the deliveries that each session of a namespace has
// in hand. See scripts/take.lua.
func fetchedKey(queue, namespace string) string {
	return queueKey(queue, "lockstep:fetched:"+namespace)
}

// asleepKey is a ZSET in the slot of a queue: the sessions of a namespace that wait for a delivery.
// See scripts/take.lua.
func asleepKey(queue, namespace string) string {
	return queueKey(queue, "lockstep:asleep:"+namespace)
}

// inHandMost is how long a delivery counts as in hand after its fetch. The worker sends the claim
// immediately, so after this time the reply to the claim was lost; or Redis executed the fetch so
// late that the worker had already abandoned it and removed its record. A shorter time can cause a
// second delivery, which the ledger drops. A longer time delays the run.
const inHandMost = 10 * time.Second

// readRecord parses the record of a fetch: its time, by the server's clock, and the IDs that it
// took.
func readRecord(record string) (at time.Time, ids []string) {
	first, rest, _ := strings.Cut(record, "\x1f")
	if ms, err := strconv.ParseInt(first, 10, 64); err == nil && rest != "" {
		return time.UnixMilli(ms), strings.Split(rest, "\x1f")
	}
	return time.Time{}, nil
}

// A Fetch is the deliveries that one session took from a queue at once and has not yet handled.
type Fetch struct {
	Session    string
	Queue      string
	Deliveries []ledger.Due

	field string // of its record
	at    time.Time
	n     int64 // number of the fetch in its process
}

// Fetched returns the deliveries that sessions of this namespace have in hand: those that live
// workers are claiming now, and those that a worker had when it died. The oldest fetch comes first.
// Workers of a build without this record have none.
func (c *Client) Fetched(ctx context.Context) ([]Fetch, error) {
	queues, err := c.ownQueues(ctx)
	if err != nil {
		return nil, err
	}
	records := make([]*redis.MapStringStringCmd, len(queues))
	err = c.pipeline(ctx, func(p redis.Pipeliner) {
		for i, q := range queues {
			records[i] = p.HGetAll(ctx, fetchedKey(q, c.namespace))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read fetched deliveries of %s: %w", strings.Join(queues, ", "), err)
	}
	var fetched []Fetch
	for i, q := range queues {
		for field, text := range records[i].Val() {
			f := Fetch{Queue: q, field: field}
			session, n, _ := strings.Cut(field, "\x00")
			f.Session = session
			f.n, _ = strconv.ParseInt(n, 10, 64) // 0 for a field of another form
			var ids []string
			f.at, ids = readRecord(text)
			for _, id := range ids {
				f.Deliveries = append(f.Deliveries, deliveryOf(strings.TrimPrefix(id, c.namespace+":"), q))
			}
			fetched = append(fetched, f)
		}
	}
	slices.SortFunc(fetched, func(a, b Fetch) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.n, b.n)) })
	return fetched, nil
}

// Forget drops the records of fetches. Call it for fetches of an ended session after pushing their
// deliveries again.
func (c *Client) Forget(ctx context.Context, fetches []Fetch) error {
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		for _, f := range fetches {
			p.HDel(ctx, fetchedKey(f.Queue, c.namespace), f.field)
		}
	})
	if err != nil {
		return fmt.Errorf("forget %d fetches: %w", len(fetches), err)
	}
	return nil
}

// ownQueues returns the queues of this namespace, sorted. A queue that this client has registered
// counts as its namespace's even after another client has changed its owner.
func (c *Client) ownQueues(ctx context.Context) ([]string, error) {
	owners, err := c.rdb.HGetAll(ctx, ownersKey).Result()
	if err != nil {
		return nil, fmt.Errorf("list queues of namespace %s: %w", c.namespace, err)
	}
	c.mu.Lock()
	names := maps.Clone(c.owned)
	c.mu.Unlock()
	for q, namespace := range owners {
		if namespace == c.namespace {
			names[q] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// inHand tracks the fetches of a server, by queue. The records of handled deliveries can be
// dropped.
type inHand struct {
	mu      sync.Mutex
	n       int64               // fetches so far; guarded by mu
	handled map[string][]string // queue -> fields of records; guarded by mu
}

// begin returns the field for the next fetch of a session, and the fields of a queue that this
// fetch can drop.
func (h *inHand) begin(queue, session string) (field string, handled []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if session != "" {
		h.n++
		field = session + "\x00" + strconv.FormatInt(h.n, 10)
	}
	handled = h.handled[queue]
	delete(h.handled, queue)
	return field, handled
}

// done adds fields of records that can be dropped.
func (h *inHand) done(queue string, fields ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handled == nil {
		h.handled = make(map[string][]string)
	}
	h.handled[queue] = append(h.handled[queue], fields...)
}

// drop drops the records of handled deliveries, for a server that may not fetch for a while.
func (h *inHand) drop(ctx context.Context, c *Client) error {
	h.mu.Lock()
	all := h.handled
	h.handled = nil
	h.mu.Unlock()
	var failed error
	for q, fields := range all {
		if err := c.rdb.HDel(ctx, fetchedKey(q, c.namespace), fields...).Err(); err != nil {
			failed = fmt.Errorf("forget fetched deliveries of %s: %w", q, err)
			h.done(q, fields...)
		}
	}
	return failed
}
