package jobs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// Pause returns how long to wait after the n-th failed attempt of a run, where n = failures. It is
// [Retry.Delay], except that an exponential backoff is randomized between half of the delay and all
// of it, so that runs that failed together retry apart. The random part depends only on the run and
// n.
func (r Retry) Pause(run RunID, failures int) time.Duration {
	delay := r.Delay(failures)
	half := (delay / 2).Milliseconds()
	if r.Backoff != BackoffExponential || half <= 0 {
		return delay
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", run, failures))
	return delay - time.Duration(binary.BigEndian.Uint64(sum[:])%uint64(half))*time.Millisecond
}

// Delay returns the pause between the n-th failed attempt of a run, where n = failures, and the
// next attempt:
//
//	fixed         Initial
//	linear        Initial * n, at most MaxDelay
//	exponential   Initial * 2^(n-1), at most MaxDelay
//
// A MaxDelay of 0 means no limit. A number of failures below 1 counts as 1.
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
		if r.Initial > limit/time.Duration(n) { // Initial * n > limit, without an overflow
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
