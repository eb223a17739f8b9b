package locks

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestReaperCallsForAnAnnouncedEntryWithoutAWait: neither an earlier call nor one that fails makes
// it forget the entry.
func TestReaperCallsForAnAnnouncedEntryWithoutAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reaper{wake: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var calls []time.Duration
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.run(ctx, slog.New(slog.DiscardHandler), func(context.Context) (time.Duration, error) {
				calls = append(calls, time.Since(began).Round(100*time.Millisecond))
				if len(calls) == 2 {
					return 0, errors.New("no reply")
				}
				return -1, nil
			})
		}()
		r.waits(1)
		r.due(500 * time.Millisecond)
		r.announced(2 * time.Second)
		time.Sleep(100 * time.Millisecond)
		r.waits(-1)
		time.Sleep(time.Hour)
		cancel()
		<-ended
		if len(calls) != 3 || calls[0] != 500*time.Millisecond || calls[1] != 2*time.Second {
			t.Errorf("it called after %v, want calls after 500 ms and 2 s, and one more for that which failed", calls)
		}
	})
}
