package space

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/locks/redistest"
)

// longestScript returns how long the longest call of a script kept the server busy, in µs: by its
// processor time, since the machine may do other work meanwhile. call makes one call and returns
// whether more is left to do.
func (r *rig) longestScript(t testing.TB, call func() bool) int {
	t.Helper()
	longest := 0
	for more := true; more; {
		before := r.processorTime(t)
		more = call()
		longest = max(longest, r.processorTime(t)-before)
	}
	return longest
}

// processorTime returns how long the server has worked, in µs.
func (r *rig) processorTime(t testing.TB) int {
	t.Helper()
	info, err := r.rdb.Info(r.ctx, "cpu").Result()
	if err != nil {
		t.Fatal(err)
	}
	worked := 0.0
	for _, m := range regexp.MustCompile(`used_cpu_(?:user|sys)_main_thread:([\d.]+)`).FindAllStringSubmatch(info, -1) {
		seconds, _ := strconv.ParseFloat(m[1], 64)
		worked += seconds
	}
	return int(worked * 1e6)
}

// more makes n calls.
func more(n int, call func(i int) bool) func() bool {
	i := -1
	return func() bool { i++; return call(i) && i < n-1 }
}

// fiveMs is a script that takes about 5 ms of a quiet machine.
const fiveMs = "local n = 0\nfor i = 1, 4500 do n = n + #call('ZRANGEBYLEX', Q, '[a' .. i, '(b', 'LIMIT', '0', '1') end\nreturn n"

// TestHeavyScriptsAreShort measures the scripts with the most to do. On an idle machine none takes
// longer than 5 ms. Other work slows the processor down, so each is compared with a script of 5 ms
// that runs beside it, and may take twice as long. The best of some tries counts.
func TestHeavyScriptsAreShort(t *testing.T) {
	const limit, tries = 2.0, 5
	session := func(t *testing.T) *rig {
		r := newRig(t, redistest.New(t, redistest.Options{}).Client(t))
		r.open(t, "s", 600_000)
		r.open(t, "w", 600_000)
		// the first call compiles it
		for _, script := range [][]any{{"reap"}, {"release", "s.0"}, {"close", "other"}} {
			r.do(t, script[0].(string), script[1:]...)
		}
		return r
	}
	// settled does the remaining work, and returns whether that took more than one call.
	reap := func(t *testing.T, r *rig) func() bool {
		return func() bool { return r.do(t, "reap")[0] == "0" }
	}
	names := func(mode string, from, n int) (items []string) {
		for i := range n {
			items = append(items, fmt.Sprintf("%s%04d", mode, from+i))
		}
		return items
	}
	cases := map[string]func(t *testing.T) (longest int){}
	for _, n := range []int{200} {
		cases[fmt.Sprintf("a cycle search over %d permits that all want one more", n)] = func(t *testing.T) int {
			r := session(t)
			r.do(t, "declare", "api", n, 1)
			for i := range n {
				r.acquire(t, "s", fmt.Sprint("s.p", i), -1, 0, "p1:api")
			}
			return r.longestScript(t, more(n, func(i int) bool {
				a := ask("s", fmt.Sprint("s.w", i), 0, 60_000, "p1:api")
				a.under = []string{fmt.Sprint("s.p", i)}
				got := r.do(t, "acquire", a.args()...)
				if want := map[bool]string{true: "deadlock"}[i == n-1]; want != "" && got[0] != want {
					t.Fatalf("got %q", got)
				}
				return true
			}))
		}
		cases[fmt.Sprintf("a cycle search over %d permits", n)] = func(t *testing.T) int {
			r := session(t)
			r.do(t, "declare", "api", n, 1)
			r.acquire(t, "s", "s.0", -1, 0, "xbill")
			for i := range n {
				r.acquire(t, "s", fmt.Sprint("s.p", i), -1, 0, "p1:api")
			}
			for i := range n { // each holder of a permit waits for the bill
				a := ask("s", fmt.Sprint("s.w", i), 0, 60_000, "xbill")
				a.under = []string{fmt.Sprint("s.p", i)}
				r.do(t, "acquire", a.args()...)
			}
			a := ask("s", "s.last", 0, 60_000, "p1:api")
			a.under = []string{"s.0"}
			return r.longestScript(t, func() bool {
				if got := r.do(t, "acquire", a.args()...); got[0] != "deadlock" {
					t.Fatalf("got %q", got)
				}
				return false
			})
		}
	}
	cases["the end of a session with 2,000 names that have waiters"] = func(t *testing.T) int {
		r := session(t)
		for i := range 20 {
			r.acquire(t, "s", fmt.Sprint("s.", i), -1, 0, names("x", 100*i, 100)...)
		}
		for i := range 2000 {
			r.acquire(t, "w", fmt.Sprint("w.", i), 0, 60_000, names("x", i, 1)...)
		}
		longest := r.longestScript(t, func() bool { return r.do(t, "close", "s")[0] == "more" })
		longest = max(longest, r.longestScript(t, reap(t, r)))
		if held := r.rdb.ZCard(r.ctx, r.keys[2]).Val(); held != 2000 {
			t.Errorf("got %d holds, want 2000", held)
		}
		return longest
	}
	cases["the end of a session with 2,000 single holds that have waiters"] = func(t *testing.T) int {
		r := session(t)
		for i := range 2000 {
			r.acquire(t, "s", fmt.Sprint("s.", i), -1, 0, names("x", i, 1)...)
			r.acquire(t, "w", fmt.Sprint("w.", i), 0, 60_000, names("x", i, 1)...)
		}
		longest := r.longestScript(t, func() bool { return r.do(t, "close", "s")[0] == "more" })
		longest = max(longest, r.longestScript(t, reap(t, r)))
		if held := r.rdb.ZCard(r.ctx, r.keys[2]).Val(); held != 2000 {
			t.Errorf("got %d holds, want 2000", held)
		}
		return longest
	}
	for _, mode := range []string{"x", "s"} {
		cases["a release of 1,000 names without waiters, mode "+mode] = func(t *testing.T) int {
			r := session(t)
			r.acquire(t, "s", "s.1", -1, 0, names(mode, 0, 1000)...)
			r.acquire(t, "s", "s.2", -1, 0, "xother")
			r.acquire(t, "s", "s.3", 0, 60_000, "xother")
			return max(r.longestScript(t, func() bool { r.do(t, "release", "s.1"); return false }), r.longestScript(t, reap(t, r)))
		}
		cases["a release of 1,000 names with waiters, mode "+mode] = func(t *testing.T) int {
			r := session(t)
			r.acquire(t, "s", "s.1", -1, 0, names(mode, 0, 1000)...)
			for i := range 1000 {
				r.acquire(t, "w", fmt.Sprint("w.", i), 0, 60_000, names("x", i, 1)...)
			}
			longest := max(r.longestScript(t, func() bool { r.do(t, "release", "s.1"); return false }), r.longestScript(t, reap(t, r)))
			if held := r.rdb.ZCard(r.ctx, r.keys[2]).Val(); held != 1000 {
				t.Errorf("got %d holds, want 1000", held)
			}
			return longest
		}
	}
	cases["a release of 1,000 names that one bundle waits for"] = func(t *testing.T) int {
		r := session(t)
		r.acquire(t, "s", "s.1", -1, 0, names("x", 0, 1000)...)
		r.acquire(t, "w", "w.1", 0, 60_000, names("x", 0, 1000)...)
		return max(r.longestScript(t, func() bool { r.do(t, "release", "s.1"); return false }), r.longestScript(t, reap(t, r)))
	}
	cases["an acquire of 1,000 names"] = func(t *testing.T) int {
		r := session(t)
		r.acquire(t, "s", "s.2", -1, 0, "xother")
		r.acquire(t, "s", "s.3", 0, 60_000, "xother")
		return r.longestScript(t, func() bool {
			r.acquire(t, "s", "s.1", 0, 0, names("x", 0, 1000)...)
			return false
		})
	}
	var sorted []string
	for name := range cases {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			measure := newRig(t, redistest.New(t, redistest.Options{}).Client(t))
			measure.do(t, fiveMs) // the first call compiles it
			best := math.Inf(1)
			for range tries {
				took, other := 0, 0
				for range 3 {
					other = max(other, measure.longestScript(t, func() bool { measure.do(t, fiveMs); return false }))
				}
				took = cases[name](t)
				best = min(best, float64(took)/float64(other))
				t.Logf("%s: %.1f ms, beside %.1f ms", name, float64(took)/1000, float64(other)/1000)
				if best <= 1.5 {
					break
				}
			}
			if best > limit {
				t.Errorf("%s: the longest script took %.1f times as long as a script of 5 ms, want at most %.1f", name, best, limit)
			}
		})
	}
}
