package admin

import (
	"testing"
	"time"
)

func TestSpansHaveAtMostTwoUnits(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration][2]string{ // as an age, and as a span
		-time.Second: {"0s", "0s"}, 0: {"0s", "0s"}, 420 * time.Millisecond: {"0s", "420ms"}, 999700 * time.Microsecond: {"1s", "1s"},
		4020 * time.Millisecond: {"4s", "4s"}, 4263 * time.Millisecond: {"4s", "4.3s"}, 9960 * time.Millisecond: {"10s", "10s"},
		12300 * time.Millisecond: {"12s", "12s"}, 59600 * time.Millisecond: {"1m", "1m"}, 182 * time.Second: {"3m 2s", "3m 2s"},
		time.Hour + time.Second: {"1h", "1h"}, 5*time.Hour + 10*time.Minute + 7*time.Second: {"5h 10m", "5h 10m"},
		34 * time.Hour: {"1d 10h", "1d 10h"}, 400 * 24 * time.Hour: {"400d", "400d"},
	} {
		if got := [2]string{Age(d), Span(d)}; got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
}
