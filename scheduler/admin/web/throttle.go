package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The limits on sign-ins with a secret that was not right a moment ago from the same address. They
// are low enough that guessing a password takes years, and high enough that a user who mistypes
// one, or a script that restarts, notices nothing.
const (
	tryBurst    = 10              // sign-ins of one address at once
	tryEvery    = 5 * time.Second // and then one more in this time
	tryAllBurst = 20              // sign-ins of all addresses at once
	// and then this number a second: what a processor computes at bcrypt's usual costs
	tryAllRate = 3

	// since the last request with them, right credentials are remembered
	rememberFor  = 24 * time.Hour
	rememberMost = 1000 // of them are kept, over all users and addresses

	bucketsMost = 1000 // addresses with a stored bucket; the full ones are forgotten first

	penalty       = time.Second // how long the reply to a sign-in above the limits is held back
	penaltiesOfIP = 256         // replies to one address that are held back at a time
	// and to all addresses: less than the connections that the server takes
	penaltiesMost = 320
)

// throttle bounds how fast passwords and tokens can be guessed. Time is an argument, so that tests
// need not wait.
//
// A token bucket for each address bounds one guesser, and one for all addresses bounds many. An
// IPv6 address counts by its /64, which is what one customer of a network has. Credentials that
// were right are remembered with the address that they came from: they are accepted first, whatever
// the buckets have, so guessers cannot lock out a user with an earlier sign-in.
//
// The comparison with remembered credentials needs no token, and so a client at an address where a
// user has signed in (a shared host, a NAT, a reverse proxy in front of mode basic) could guess
// that user's password faster. Therefore the reply to each sign-in above the limits is held back
// for a second, and the number of held-back replies bounds that rate too: penaltiesOfIP a second,
// beyond which the address gets no hearing at all. Other addresses do not notice.
type throttle struct {
	mu      sync.Mutex // guards the fields below
	all     *rate.Limiter
	buckets map[netip.Prefix]*rate.Limiter // absent: full
	known   map[credentials]time.Time      // when they were last used
	held    map[netip.Prefix]int           // replies that are held back; no zeros
	holding int                            // the sum of held
	salt    []byte                         // of credentials
}

// credentials are an address, a user and a secret, hashed: a remembered value reveals no password.
type credentials [sha256.Size]byte

func newThrottle() *throttle {
	t := &throttle{
		all:     rate.NewLimiter(tryAllRate, tryAllBurst),
		buckets: make(map[netip.Prefix]*rate.Limiter), known: make(map[credentials]time.Time), held: make(map[netip.Prefix]int),
		salt: make([]byte, sha256.Size),
	}
	_, _ = rand.Read(t.salt) // never fails
	return t
}

// sourceOf returns the network that a request counts for: its IPv4 address, or the /64 of its IPv6
// address.
func sourceOf(r *http.Request) netip.Prefix {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{} // all of these share a bucket
	}
	address, bits := from.Addr().Unmap().WithZone(""), 32
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits) // fails only for other numbers of bits
	return prefix
}

// credentials returns the value to remember for a sign-in. valid names the state of the file that
// made it right: when the file changes, no remembered value is valid any more.
func (t *throttle) credentials(from netip.Prefix, user, secret, valid string) credentials {
	mac := hmac.New(sha256.New, t.salt)
	for _, part := range []string{from.String(), user, secret, valid} {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return credentials(mac.Sum(nil))
}

// remembers reports whether credentials were right a while ago, and keeps them for longer.
func (t *throttle) remembers(c credentials, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, ok := t.known[c]
	if !ok || now.Sub(last) > rememberFor {
		return false
	}
	t.known[c] = now
	return true
}

// remember keeps credentials that were right. The ones used longest ago make room.
func (t *throttle) remember(c credentials, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.known[c]; !ok && len(t.known) >= rememberMost {
		oldest, first := c, true
		for other, last := range t.known {
			if first || last.Before(t.known[oldest]) {
				oldest, first = other, false
			}
		}
		delete(t.known, oldest)
	}
	t.known[c] = now
}

// take takes a token for a sign-in from an address. Without one, it returns the time until the
// next.
func (t *throttle) take(from netip.Prefix, now time.Time) (wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	bucket := t.buckets[from]
	if bucket != nil {
		if wait := untilToken(bucket, now); wait > 0 {
			return wait, false // without a token from the shared bucket
		}
	}
	if wait := untilToken(t.all, now); wait > 0 {
		return wait, false
	}
	t.all.AllowN(now, 1)
	if bucket == nil {
		if len(t.buckets) >= bucketsMost {
			t.forget(now)
		}
		bucket = rate.NewLimiter(rate.Every(tryEvery), tryBurst)
		t.buckets[from] = bucket
	}
	bucket.AllowN(now, 1)
	return 0, true
}

// forget drops the buckets that are full again, since an absent bucket means a full one. Every
// sign-in that takes from an address's bucket also takes a token from the shared bucket, so few
// buckets are left: tryAllBurst, and tryAllRate for each second that a bucket takes to fill. The
// caller holds mu.
func (t *throttle) forget(now time.Time) {
	for from, bucket := range t.buckets {
		if bucket.TokensAt(now) >= tryBurst {
			delete(t.buckets, from)
		}
	}
}

// untilToken returns the time until a bucket has a token.
func untilToken(bucket *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - bucket.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration(missing/float64(bucket.Limit())*float64(time.Second)))
}

// crowded reports whether too many replies to an address are held back for it to get a hearing.
func (t *throttle) crowded(from netip.Prefix) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held[from] >= penaltiesOfIP
}

// punish holds a request back for a moment, unless too many are held back already.
func (t *throttle) punish(ctx context.Context, from netip.Prefix) {
	t.mu.Lock()
	if t.held[from] >= penaltiesOfIP || t.holding >= penaltiesMost {
		t.mu.Unlock()
		return
	}
	t.held[from]++
	t.holding++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.holding--
		if t.held[from]--; t.held[from] == 0 {
			delete(t.held, from)
		}
	}()
	timer := time.NewTimer(penalty)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// throttledError refuses a sign-in that came too soon after others.
type throttledError struct{ wait time.Duration }

func (e *throttledError) Error() string {
	return fmt.Sprintf("too many sign-ins; try again in %ds", e.seconds())
}

// seconds is the wait in the form of Retry-After.
func (e *throttledError) seconds() int { return max(1, int(math.Ceil(e.wait.Seconds()))) }
