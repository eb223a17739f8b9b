package repeats_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/scheduler/repeats"
)

func TestOneLinePerKindStandsForThoseThatRepeatIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		plain := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}}))
		log := repeats.New(plain, "call")
		written := func() string {
			defer text.Reset()
			return strings.ReplaceAll(strings.TrimSpace(text.String()), "\n", " | ")
		}
		check := func(when, want string) {
			t.Helper()
			if got := written(); got != want {
				t.Errorf("%s:\n got %s\nwant %s", when, got, want)
			}
		}
		oom := errors.New("OOM")

		for i := range 1000 {
			log.Warn("a claim failed", "run", i, "error", oom)
			log.With("worker", "w").Warn("a call failed", "call", "poll")
			log.Warn("a call failed", "call", "sweep")
		}
		check("at once", `msg="a claim failed" run=0 error=OOM | msg="a call failed" worker=w call=poll | msg="a call failed" call=sweep`)
		log.Flush(t.Context(), false)
		check("a flush before the time is over", "")

		time.Sleep(repeats.Every)
		log.Warn("a claim failed", "run", 1000, "error", oom)
		check("the next one", `msg="a claim failed" run=1000 error=OOM repeated=1000`)
		log.Warn("a claim failed", "run", 1001, "error", oom)
		check("one after it", "")

		time.Sleep(repeats.Every)
		log.Flush(t.Context(), false)
		for _, want := range []string{"run=1001 error=OOM repeated=1", "worker=w call=poll repeated=999", "call=sweep repeated=999"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the flush wrote %s, want a line with %s", text.String(), want)
			}
		}
		text.Reset()

		time.Sleep(repeats.Every)
		log.Flush(t.Context(), false)
		check("nothing came since", "")
		log.Warn("a claim failed", "run", 1002)
		check("a kind that has not come for a while", `msg="a claim failed" run=1002`)
		log.Warn("a claim failed", "run", 1003)
		log.Flush(t.Context(), true)
		check("the last flush", `msg="a claim failed" run=1003 repeated=1`)
	})
}
