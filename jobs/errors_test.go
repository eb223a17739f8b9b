package jobs_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"testing"
	"time"

	"lockstep/jobs"
)

func TestPermanentAndRetryAfterAreSeenThroughWrapping(t *testing.T) {
	t.Parallel()
	permanent := fmt.Errorf("settle: %w", jobs.Permanent(io.EOF))
	if !jobs.IsPermanent(permanent) || !errors.Is(permanent, io.EOF) || permanent.Error() != "settle: EOF" {
		t.Errorf("got %v (permanent %v), want a permanent error that wraps EOF", permanent, jobs.IsPermanent(permanent))
	}
	if jobs.IsPermanent(io.EOF) || jobs.IsPermanent(nil) || jobs.Permanent(nil) != nil {
		t.Error("an ordinary error is permanent")
	}

	after := fmt.Errorf("settle: %w", jobs.RetryAfter(time.Minute, io.EOF))
	if d, ok := jobs.RetryDelay(after); d != time.Minute || !ok || !errors.Is(after, io.EOF) || after.Error() != "settle: EOF" {
		t.Errorf("RetryDelay(%v) = %v, %v; want 1m, true", after, d, ok)
	}
	if d, ok := jobs.RetryDelay(jobs.RetryAfter(-time.Minute, io.EOF)); d != 0 || !ok {
		t.Errorf("negative pause: got %v, %v; want 0, true", d, ok)
	}
	if _, ok := jobs.RetryDelay(io.EOF); ok || jobs.RetryAfter(time.Minute, nil) != nil {
		t.Error("got a pause from an ordinary error")
	}
}

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, test := range []struct {
		retry jobs.Retry
		want  map[int]time.Duration // by number of failures
	}{
		{jobs.Retry{Backoff: jobs.BackoffFixed, Initial: 5 * s, MaxDelay: 60 * s}, map[int]time.Duration{0: 5 * s, 1: 5 * s, 2: 5 * s, 1000: 5 * s}},
		{jobs.Retry{Backoff: jobs.BackoffLinear, Initial: 5 * s, MaxDelay: 12 * s}, map[int]time.Duration{0: 5 * s, 1: 5 * s, 2: 10 * s, 3: 12 * s, math.MaxInt: 12 * s}},
		{jobs.Retry{Backoff: jobs.BackoffExponential, Initial: 5 * s, MaxDelay: 60 * s}, map[int]time.Duration{-1: 5 * s, 1: 5 * s, 2: 10 * s, 3: 20 * s, 4: 40 * s, 5: 60 * s, 64: 60 * s, math.MaxInt: 60 * s}},
		{jobs.Retry{Backoff: jobs.BackoffExponential, Initial: 5 * s}, map[int]time.Duration{2: 10 * s, 1000: math.MaxInt64}},
		{jobs.Retry{Backoff: jobs.BackoffLinear, Initial: 5 * s}, map[int]time.Duration{2: 10 * s, math.MaxInt: math.MaxInt64}},
		{jobs.Retry{Backoff: jobs.BackoffExponential}, map[int]time.Duration{1: 0, 100: 0}},
	} {
		for failures, want := range test.want {
			if got := test.retry.Delay(failures); got != want {
				t.Errorf("%+v: Delay(%d) = %v, want %v", test.retry, failures, got, want)
			}
		}
	}
}

func TestPausesOfRunsThatFailedTogetherDiffer(t *testing.T) {
	t.Parallel()
	retry := jobs.Retry{Backoff: jobs.BackoffExponential, Initial: 4 * time.Second}
	seen := make(map[time.Duration]bool)
	for i := range 100 {
		id := jobs.RequestRunID("j", strconv.Itoa(i))
		pause := retry.Pause(id, 2)
		if pause <= 4*time.Second || pause > 8*time.Second || pause != retry.Pause(id, 2) {
			t.Errorf("%s: %v, want the same each time, from half of 8s to the whole", id, pause)
		}
		seen[pause] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different pauses for 100 runs, want them spread", len(seen))
	}
	fixed := jobs.Retry{Backoff: jobs.BackoffFixed, Initial: 4 * time.Second}
	if pause := fixed.Pause("j#1", 2); pause != 4*time.Second {
		t.Errorf("fixed: %v, want 4s", pause)
	}
}
