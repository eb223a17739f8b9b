package web

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// from sends a request from an address, as a user.
func (g *guarded) from(address, user, password string) *httptest.ResponseRecorder {
	return g.asks(http.MethodGet, "/api/v1/whoami", func(r *http.Request) {
		r.RemoteAddr = address
		r.SetBasicAuth(user, password)
	})
}

// Two hundred guessers get few guesses checked, and lock no user out: neither a user who has signed
// in from the same address, nor one who signs in for the first time from another.
func TestGuessersGetFewGuessesAndKeepNoUserOut(t *testing.T) {
	t.Parallel()
	for name, auth := range map[string]Auth{
		"password file": {Mode: AuthBasic, User: "ann", PasswordFile: secretFile(t, "right")},
		"users file":    {Mode: AuthBasic, UsersFile: secretFile(t, hashed(t, "ann", "right"))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuarded(t, auth, "0.0.0.0:9620")
				if w := g.from("192.0.2.1:1000", "ann", "right"); w.Code != http.StatusOK {
					t.Fatalf("got %d", w.Code)
				}
				const guessers, each = 200, 30
				var checked, refused atomic.Int64
				var guessing sync.WaitGroup
				began := time.Now()
				for i := range guessers {
					guessing.Go(func() {
						for n := range each {
							switch w := g.from("192.0.2.1:2000", "ann", fmt.Sprint("guess", i, n)); w.Code {
							case http.StatusUnauthorized:
								checked.Add(1)
							case http.StatusTooManyRequests:
								refused.Add(1)
								if wait, err := strconv.Atoi(w.Header().Get("Retry-After")); err != nil || wait < 1 || wait > 5 {
									t.Errorf("Retry-After is %q, want seconds until the next token", w.Header().Get("Retry-After"))
								}
							default:
								t.Errorf("a guess is answered with %d", w.Code)
							}
						}
					})
				}
				done := make(chan struct{})
				go func() { guessing.Wait(); close(done) }()
				for i, going := 0, true; going; i++ {
					before := time.Now()
					if w := g.from("192.0.2.1:1000", "ann", "right"); w.Code != http.StatusOK || time.Since(before) > 0 {
						t.Errorf("a user who has signed in gets %d after %s", w.Code, time.Since(before))
					}
					first := fmt.Sprintf("198.51.100.%d:1", i+1)
					if w := g.from(first, "ann", "right"); i < 5 && (w.Code != http.StatusOK || time.Since(before) > 0) {
						t.Errorf("a user at another address gets %d after %s", w.Code, time.Since(before))
					}
					select {
					case <-done:
						going = false
					case <-time.After(time.Second):
					}
				}
				took := time.Since(began)
				most := int64(tryBurst + took/tryEvery + 1)
				t.Logf("%d guesses checked, %d refused in %s", checked.Load(), refused.Load(), took)
				if checked.Load() > most {
					t.Errorf("%d guesses were checked in %s, want at most %d", checked.Load(), took, most)
				}
				if took < (each-tryBurst)*penalty {
					t.Errorf("%d guesses were answered within %s: a client that shares an address with a user could guess that fast", guessers*each, took)
				}
			})
		})
	}
}

// Many addresses together get no more tokens than the shared bucket has, and the memory of their
// buckets is bounded.
func TestBucketsOfManyAddressesAreFewAndShareOne(t *testing.T) {
	t.Parallel()
	limits, now := newThrottle(), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	taken := 0
	const seconds, perSecond = 600, 500
	for i := range seconds * perSecond {
		now = now.Add(time.Second / perSecond)
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if wait, ok := limits.take(netip.PrefixFrom(address, 32), now); ok {
			taken++
		} else if wait <= 0 || wait > time.Second/tryAllRate+time.Millisecond {
			t.Fatalf("the wait is %s", wait)
		}
		if len(limits.buckets) > bucketsMost {
			t.Fatalf("there are %d buckets", len(limits.buckets))
		}
	}
	if most := tryAllBurst + seconds*tryAllRate + 1; taken > most || taken < most/2 {
		t.Errorf("%d sign-ins were let through, want about %d", taken, most)
	}
	limits.mu.Lock()
	limits.forget(now.Add(tryBurst * tryEvery))
	limits.mu.Unlock()
	if len(limits.buckets) != 0 {
		t.Errorf("%d buckets are left when all are full again", len(limits.buckets))
	}
}

// An address that is above its limit takes no token of the shared bucket.
func TestOneAddressLeavesTokensToOthers(t *testing.T) {
	t.Parallel()
	limits, now := newThrottle(), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	guesser, other := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	for range 1000 {
		limits.take(guesser, now)
	}
	for i := range tryAllBurst - tryBurst {
		if wait, ok := limits.take(other, now); !ok {
			t.Fatalf("sign-in %d of another address has to wait %s", i, wait)
		}
	}
}

func TestSourcesAreAddressesAndSubnets(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1/32", "[::ffff:192.0.2.1]:5": "192.0.2.1/32", "[2001:db8:1:2:3:4:5:6]:5": "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:9": "2001:db8:1:2::/64", "[fe80::1%eth0]:5": "fe80::/64", "@": "invalid Prefix", "": "invalid Prefix",
	} {
		if got := sourceOf(&http.Request{RemoteAddr: remote}).String(); got != want {
			t.Errorf("%q: got %s, want %s", remote, got, want)
		}
	}
}

func TestRememberedCredentialsAreBoundedAndExpire(t *testing.T) {
	t.Parallel()
	limits, now := newThrottle(), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	from := netip.MustParsePrefix("192.0.2.1/32")
	of := func(i int) credentials { return limits.credentials(from, fmt.Sprint("user", i), "secret", "file") }
	for i := range rememberMost + 10 {
		limits.remember(of(i), now.Add(time.Duration(i)*time.Millisecond))
	}
	if n := len(limits.known); n != rememberMost {
		t.Errorf("%d are remembered, want %d", n, rememberMost)
	}
	later := now.Add(time.Minute)
	if limits.remembers(of(0), later) || !limits.remembers(of(rememberMost+9), later) {
		t.Error("not the ones used longest ago are forgotten")
	}
	if !limits.remembers(of(100), later.Add(rememberFor-time.Minute)) {
		t.Error("credentials expire early")
	}
	if limits.remembers(of(100), later.Add(3*rememberFor)) {
		t.Error("credentials never expire")
	}
	for what, other := range map[string]credentials{
		"another address":  limits.credentials(netip.MustParsePrefix("192.0.2.2/32"), "user50", "secret", "file"),
		"another password": limits.credentials(from, "user50", "secret2", "file"),
		"another file":     limits.credentials(from, "user50", "secret", "file2"),
		"shifted parts":    limits.credentials(from, "user50s", "ecret", "file"),
	} {
		if limits.remembers(other, later) {
			t.Errorf("%s is remembered", what)
		}
	}
}

// A refusal computes as much as for the user with the highest cost.
func TestCostsDoNotRevealWhichUsersExist(t *testing.T) {
	t.Parallel()
	line := func(user string, cost int) string {
		hash, err := bcrypt.GenerateFromPassword([]byte("right"), cost)
		if err != nil {
			t.Fatal(err)
		}
		return user + ":" + string(hash) + "\n"
	}
	all, err := parseUsers(line("low", 4) + line("middle", 6) + line("high", 8))
	if err != nil {
		t.Fatal(err)
	}
	rounds := 0 // each increment of the cost doubles them
	all.compare = func(hash, password []byte) error {
		cost, err := bcrypt.Cost(hash)
		if err != nil {
			t.Error(err)
		}
		rounds += 1 << cost
		return bcrypt.CompareHashAndPassword(hash, password)
	}
	for _, user := range []string{"low", "middle", "high", "nobody"} {
		rounds = 0
		if good, err := all.right(t.Context(), user, "wrong"); good || err != nil || rounds != 1<<8 {
			t.Errorf("a refusal of %s computes %d rounds (%t, %v), want %d", user, rounds, good, err, 1<<8)
		}
	}
	for _, user := range []string{"low", "middle", "high"} {
		if good, err := all.right(t.Context(), user, "right"); !good || err != nil {
			t.Errorf("%s: got %t, %v", user, good, err)
		}
	}
}

func TestLowCostsAreWarnedOf(t *testing.T) {
	t.Parallel()
	low := hashed(t, "ann", "x") + hashed(t, "bob", "x") + hashed(t, "carl", "x") + hashed(t, "dan", "x")
	for text, want := range map[string]string{
		low: `those of "ann" (4), "bob" (4), "carl" (4) and 1 more`,
		strings.ReplaceAll(hashed(t, "ann", "x"), "$04$", "$10$"): "",
	} {
		path := secretFile(t, text)
		signIn, err := NewSignIn(Auth{Mode: AuthBasic, UsersFile: path}, "127.0.0.1:0", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := signIn.Warnings()
		if want == "" && got != "" || !strings.Contains(got, want) || want != "" && !strings.HasPrefix(got, "admin.auth.users_file "+path+": ") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
