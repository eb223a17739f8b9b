package space

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// TestOneOldWaitBarsAWideBundle asks for 100 free names. One of them has an old wait in its queue,
// others have none, or young waits. It moves the old wait along the bundle.
func TestOneOldWaitBarsAWideBundle(t *testing.T) {
	t.Parallel()
	const n = 100
	naming := map[string]func(i int) string{
		"alike":  func(i int) string { return fmt.Sprintf("account:%04d", i) },
		"unlike": func(i int) string { return fmt.Sprintf("%c%dé", 'a'+rune(i*7%26), i) },
	}
	redistest.Large(t, func(t *testing.T, rdb *redis.Client) {
		for like, name := range naming {
			// every so many names have young waits in their queues
			for _, each := range []int{0, 7, 1} {
				for i, old := range []int{-1, 0, 15, n - 1} {
					// In every second case, the young ones include a nested one, which comes before
					// the old one.
					mode, front := []string{"x", "s"}[i/2], i%2 == 1
					t.Run(fmt.Sprintf("%s,%d,%s,%d,%t", like, each, mode, old, front), func(t *testing.T) {
						barWideBundle(t, rdb, n, name, each, mode, old, front)
					})
				}
			}
		}
	})
}

func barWideBundle(t *testing.T, rdb *redis.Client, n int, name func(int) string, each int, mode string, old int, front bool) {
	const patience = 1000
	r := newRig(t, rdb)
	if err := r.setTime(1_000_000_000_000_000); err != nil {
		t.Fatal(err)
	}
	r.open(t, "s", 600_000)
	r.acquire(t, "s", "s.busy", -1, 0, "xbusy")
	r.acquire(t, "s", "s.outer", -1, 0, "xouter")
	if old >= 0 {
		r.acquire(t, "s", "s.old", 0, patience, "xbusy", "x"+name(old))
	}
	if err := r.setTime(1_000_000_000_000_000 + 1000*patience); err != nil {
		t.Fatal(err)
	}
	var items []string
	for i := range n {
		items = append(items, mode+name(i))
		if each == 0 || i%each != 0 {
			continue
		}
		for k := range 1 + i%3 {
			r.acquire(t, "s", fmt.Sprint("s.young", i, ".", k), 0, patience, "xbusy", "x"+name(i))
		}
	}
	if front && old >= 0 {
		a := ask("s", "s.nested", 0, patience, "xbusy", "x"+name(old))
		a.under = []string{"s.outer"}
		r.do(t, "acquire", a.args()...)
	}
	got := r.acquire(t, "s", "s.wide", -1, 0, items...)
	switch {
	case old < 0 && got[0] != "granted":
		t.Errorf("got %q, want it granted", got)
	case old >= 0 && (got[0] != "busy" || got[2] != name(old) || got[4] != "s.old"):
		t.Errorf("got %q, want it busy: %s is reserved for s.old", got, name(old))
	}
	if err := rdb.Del(r.ctx, r.keys...).Err(); err != nil {
		t.Fatal(err)
	}
}
