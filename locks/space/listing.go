package space

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Space is one lock space, seen without a session: [Space.Read] lists holds and waits,
// [Space.Sessions] the live sessions. Packages with their own scripts that grant and free in the
// space build them with [Space.Keys] and [Link]. Reading changes nothing and creates nothing.
type Space struct {
	rdb  redis.UniversalClient
	keys []string
}

// On returns the space of keys that [KeysOf] returned. It sends commands through rdb, which the
// caller keeps and closes. It dials nothing.
func On(rdb redis.UniversalClient, keys []string) *Space { return &Space{rdb, keys} }

// Keys returns the keys of the space in the order in which [Link] expects them, at the front of
// KEYS. The caller may append to the slice.
func (s *Space) Keys() []string { return slices.Clip(slices.Clone(s.keys)) }

// Listing is the content of a space, or of some of its sessions. It is read in pages of at most
// 1,000, each of one moment. A bundle that is granted between two pages may be listed as a wait and
// as a hold.
type Listing struct {
	At    time.Time // when the first page was read, by the server's clock
	Holds []HoldRecord
	Waits []WaitRecord // in the order of their tickets
}

const pageSize = 1000

// Read lists the holds and waits of the given sessions, or of the whole space when none is given.
// The waits of runs belong to the session "@".
func (s *Space) Read(ctx context.Context, sessions ...SessionID) (*Listing, error) {
	listing := new(Listing)
	ranges := [][2]string{{"-", "(~"}} // indexes of other things come after ~
	if len(sessions) > 0 {
		ranges = ranges[:0]
		for _, id := range sessions {
			ranges = append(ranges, [2]string{"[" + string(id) + "\x00", "(" + string(id) + "\x01"})
		}
	}
	for _, r := range ranges {
		for _, kind := range []string{"h", "w"} {
			if err := s.readRange(ctx, kind, r[0], r[1], listing); err != nil {
				return nil, fmt.Errorf("read lock space: %w", err)
			}
		}
	}
	slices.SortFunc(listing.Waits, func(a, b WaitRecord) int { return cmp.Compare(a.Ticket, b.Ticket) })
	return listing, nil
}

func (s *Space) readRange(ctx context.Context, kind, from, to string, listing *Listing) error {
	for from != "" {
		r, err := Run(ctx, s.rdb, List, s.keys, kind, from, to, pageSize)
		if err != nil {
			return err
		}
		if listing.At.IsZero() {
			listing.At = Time(r.NumberAt(0))
		}
		from = r.At(1)
		for i := 2; i+2 < len(r); i += 3 {
			if kind == "h" {
				if hold, ok := parseHold(r.At(i), Millis(r.NumberAt(i+2))); ok {
					listing.Holds = append(listing.Holds, hold)
				}
			} else {
				listing.addWait(r.At(i), r.At(i+1))
			}
		}
	}
	return nil
}

// Kept returns the classes of waits that are kept back, in order: see [Kept].
func (s *Space) Kept(ctx context.Context) ([]string, error) {
	text, err := s.rdb.HGet(ctx, s.key("meta"), "kept").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read lock space: %w", err)
	}
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\x1f' }), nil
}

// sessionsPage is how many sessions, with cards of up to 16 KiB, one script reads.
const sessionsPage = 100

// Sessions lists every session, and the server's time. It reads in pages: a session that opens or
// ends meanwhile may be listed or missing.
func (s *Space) Sessions(ctx context.Context) ([]SessionRecord, time.Time, error) {
	var records []SessionRecord
	var at time.Time
	for from := "[~l"; from != ""; {
		r, err := Run(ctx, s.rdb, Sessions, s.keys, from, sessionsPage)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("read lock space: %w", err)
		}
		if at.IsZero() {
			at = Time(r.NumberAt(0))
		}
		from = r.At(1)
		for i := 2; i+2 < len(r); i += 3 {
			left := max(0, Millis(r.NumberAt(i+2)))
			records = append(records, SessionRecord{SessionID(r.At(i)), rawInfo(r.At(i + 1)), formatOf(json.RawMessage(r.At(i + 1))), left})
		}
	}
	slices.SortFunc(records, func(a, b SessionRecord) int { return cmp.Compare(a.LeaseLeft, b.LeaseLeft) })
	return records, at, nil
}

// Now returns the time by the server's clock.
func (s *Space) Now(ctx context.Context) (time.Time, error) {
	r, err := Run(ctx, s.rdb, Sessions, s.keys, "[~l", 0)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of the lock space: %w", err)
	}
	return Time(r.NumberAt(0)), nil
}

// GraceLeft returns how long nothing is granted any more, since Redis has lost data; 0: it is.
func (s *Space) GraceLeft(ctx context.Context) (time.Duration, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return 0, err
	}
	values, err := s.rdb.HMGet(ctx, s.key("meta"), "grace").Result()
	if err != nil {
		return 0, fmt.Errorf("read the grace period: %w", s.Explain(err))
	}
	until, _ := values[0].(string) // nil: none
	if until == "" {
		return 0, nil
	}
	return max(0, Time(Int(until)).Sub(now)), nil
}

// BlockedBy returns for each wait what blocks it. For each resource, that is the holds on it that
// are in the way, or the wait that it is reserved for, and the wait right in front in its queue. A
// wait that is kept back, or has a lapsed offer, is in no queue. For permits it names all holders
// of some. It names at most 32.
func BlockedBy(holds []HoldRecord, waits []WaitRecord) map[HoldID][]HoldID {
	type user struct {
		id   HoldID
		mode Mode
	}
	users := make(map[string][]user)
	use := func(id HoldID, items []Item) {
		for _, item := range items {
			users[item.Name] = append(users[item.Name], user{id, item.Mode})
		}
	}
	for _, h := range holds {
		use(h.ID, h.Items)
	}
	queue := make([]WaitRecord, 0, len(waits))
	for _, w := range waits {
		switch w.State {
		case Offered:
			use(w.Request, w.Items)
		case Waiting:
			queue = append(queue, w)
		case Lapsed, Kept:
		}
	}
	slices.SortFunc(queue, func(a, b WaitRecord) int { return int(int64(a.Ticket) - int64(b.Ticket)) })
	blocked := make(map[HoldID][]HoldID, len(queue))
	front := make(map[string]HoldID) // the last wait seen in each queue
	for _, w := range queue {
		var by []HoldID
		add := func(id HoldID) {
			if id != "" && !slices.Contains(by, id) {
				by = append(by, id)
			}
		}
		for _, item := range w.Items {
			on := users[item.Name]
			for _, u := range on {
				if len(by) >= namedBlockers {
					break
				}
				full := item.Mode == ModePermits || item.N > 0 && len(on) >= item.N
				if u.mode == ModeExclusive || full || item.Mode == ModeExclusive && !slices.Contains(w.Under, u.id) {
					add(u.id)
				}
			}
			add(front[item.Name])
			front[item.Name] = w.Request
		}
		blocked[w.Request] = by
	}
	return blocked
}

const namedBlockers = 32

// holdersPage is how many holds of one resource one script reads.
const holdersPage = 200

// HeldBy returns the holders of a resource. It reads at most 1,000 holds that share the resource,
// in pages: a hold that is released meanwhile may be among them.
func (s *Space) HeldBy(ctx context.Context, name string) (*LockRecord, error) {
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	lock, next, err := s.heldBy(ctx, name, "")
	for err == nil && next != "" && len(lock.Holds) < pageSize {
		var more *LockRecord
		if more, next, err = s.heldBy(ctx, name, next); err == nil {
			lock.Holds = append(lock.Holds, more.Holds...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read lock %s: %w", name, err)
	}
	return lock, nil
}

// heldBy reads one page of the holds of a resource, and returns the start of the next one.
func (s *Space) heldBy(ctx context.Context, name, from string) (*LockRecord, string, error) {
	r, err := Run(ctx, s.rdb, Holders, s.keys, name, from, holdersPage)
	if err != nil {
		return nil, "", err
	}
	lock := &LockRecord{Name: name, At: Time(r.NumberAt(0))}
	owner := r.At(1)
	switch {
	case owner == "":
	case owner[0] == 's':
		lock.Mode, lock.Used = ModeShared, int(Int(owner[1:]))
	case owner[0] == 'p':
		permits := parsePermits(owner)
		lock.Mode, lock.Used, lock.Limit = ModePermits, permits.Used, permits.Permits
	default:
		lock.Mode, lock.Used = ModeExclusive, 1
	}
	for i := 3; i+1 < len(r); i += 2 {
		if hold, ok := parseHold(r.At(i), Millis(r.NumberAt(i+1))); ok {
			lock.Holds = append(lock.Holds, hold)
		}
	}
	return lock, r.At(2), nil
}

// Permits reads the declared permits of those of the given resources that have some.
func (s *Space) Permits(ctx context.Context, names ...string) (map[string]PermitRecord, error) {
	records := make(map[string]PermitRecord)
	for some := range slices.Chunk(names, pageSize) {
		owners, err := s.rdb.HMGet(ctx, s.key("own"), some...).Result()
		if err != nil {
			return nil, fmt.Errorf("read permits: %w", err)
		}
		for i, owner := range owners {
			if text, _ := owner.(string); strings.HasPrefix(text, "p") {
				records[some[i]] = parsePermits(text)
			}
		}
	}
	return records, nil
}
