package jobs

import (
	"math"
	"time"
)

// Delay returns the pause between the n-th failed attempt of a run, n = failures, and the next one:
//
//	fixed         Initial
//	linear        Initial * n, at most MaxDelay
//	exponential   Initial * 2^(n-1), at most MaxDelay
//
// A MaxDelay of 0 is no limit, a number of failures below 1 counts as 1. There is no jitter: the pause depends on its
// input alone, so whoever looks at a run can tell when it will be tried again.
func (r Retry) Delay(failures int) time.Duration {
	if r.Initial <= 0 {
		return 0
	}
	n := max(failures, 1)
	limit := r.MaxDelay
	if limit <= 0 {
		limit = math.MaxInt64
	}
	switch r.Backoff {
	case BackoffLinear:
		if r.Initial > limit/time.Duration(n) { // Initial * n > limit, without its overflow
			return limit
		}
		return r.Initial * time.Duration(n)
	case BackoffExponential:
		if n > 62 || r.Initial > limit>>(n-1) {
			return limit
		}
		return r.Initial << (n - 1)
	default:
		return r.Initial
	}
}
