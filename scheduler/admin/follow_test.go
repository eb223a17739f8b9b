package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// followed is what a follower reads: the state at one call.
type followed struct {
	live    ledger.Followed
	run     Run
	outputs map[int]string // that are stored, by attempt
	err     error
}

// ran returns an attempt that has ended, or with "" one that runs.
func ran(number int, worker, outcome string) Attempt {
	a := Attempt{Number: number, Worker: locks.SessionID(worker), Outcome: Text(outcome)}
	if outcome != "" {
		a.FinishedAt = Instant{time.Unix(int64(number), 0)}
	}
	return a
}

func part(attempt int, from int64, text string) ledger.Printed {
	return ledger.Printed{Attempt: attempt, From: from, Upto: from + int64(len(text)), Text: text}
}

func end(p ledger.Printed) ledger.Printed {
	p.End = true
	return p
}

// reports calls a follower once for each of some states, and returns its events in one line each.
func reports(t *testing.T, f func(FollowReads) *Follower, states ...followed) []string {
	t.Helper()
	var now followed
	follower := f(FollowReads{
		Live: func(context.Context, jobs.RunID, int64) (*ledger.Followed, error) { return &now.live, now.err },
		Run:  func(context.Context, jobs.RunID) (*Run, error) { return &now.run, nil },
		Output: func(_ context.Context, id jobs.RunID, attempt int) (ledger.Output, error) {
			for n := 9; n > 0 && attempt == 0; n-- {
				if now.outputs[n] != "" {
					attempt = n
				}
			}
			if text := now.outputs[attempt]; text != "" {
				return ledger.Output{Attempt: attempt, Text: text}, nil
			}
			return ledger.Output{}, fmt.Errorf("%s: %w", id, ledger.ErrUnknown)
		},
	})
	var lines []string
	for i, state := range states {
		now = state
		events, err := follower.Next(t.Context())
		if !errors.Is(err, state.err) {
			t.Errorf("call %d: %v, want %v", i, err, state.err)
		}
		for _, e := range events {
			lines = append(lines, strings.TrimSpace(strings.Join(strings.Fields(fmt.Sprint(e.Kind, " ", e.Attempt, " ", e.Worker, " ", e.State, " ", e.Text)), " ")))
		}
		if last := i == len(states)-1; follower.Ended() != (last && state.live.State.Final()) {
			t.Errorf("call %d: ended is %v", i, follower.Ended())
		}
	}
	return lines
}

func fromTheStart(reads FollowReads) *Follower { return NewFollower("j#x", reads) }

func running(attempt int, worker string, printed ...ledger.Printed) ledger.Followed {
	return ledger.Followed{State: ledger.StateRunning, Attempt: attempt, Worker: locks.SessionID(worker), Passing: true, Printed: printed}
}

func TestAFollowerReportsWhatHappens(t *testing.T) {
	t.Parallel()
	due := followed{live: ledger.Followed{State: ledger.StateDue}, run: Run{State: ledger.StateDue, WaitingFor: &WaitingFor{Reason: WaitsSlot, Text: "all slots are busy"}}}
	runs := Run{State: ledger.StateRunning, Attempts: []Attempt{ran(1, "a", "")}}
	second := Run{State: ledger.StateRunning, Attempts: []Attempt{ran(1, "a", "crashed"), ran(2, "b", "")}}
	ended := Run{State: ledger.StateSucceeded, Attempts: []Attempt{ran(1, "a", "crashed"), ran(2, "b", "succeeded")}}
	once := Run{State: ledger.StateFailed, Reason: "over", Attempts: []Attempt{ran(1, "a", "failed")}}
	failed := ledger.Followed{State: ledger.StateFailed, Attempt: 1}
	gone := errors.New("no reply")
	for name, c := range map[string]struct {
		states []followed
		want   []string
	}{
		"a run that waits, moves to another worker and ends": {
			[]followed{
				due, due, {live: running(1, "a", part(1, 0, "one ")), run: runs}, {live: running(1, "a", part(1, 0, "one "), part(1, 4, "two")), run: runs},
				{live: running(2, "b", part(1, 4, "two"), part(1, 7, " three"), part(2, 0, "again")), run: second},
				{live: ledger.Followed{State: ledger.StateSucceeded, Attempt: 2, Printed: []ledger.Printed{part(2, 0, "again"), end(part(2, 5, " done"))}},
					run: ended, outputs: map[int]string{2: "again done"}},
			},
			[]string{"waiting 0 all slots are busy", "attempt 1 a running", "output 1 one", "output 1 two", "output 1 three", "attempt 1 a crashed",
				"attempt 2 b running", "output 2 again", "output 2 done", "attempt 2 b succeeded", "end 0 succeeded"},
		},
		"parts are missing, and one overlaps": {
			[]followed{
				{live: running(1, "a", part(1, 10, "abc")), run: runs}, {live: running(1, "a", part(1, 11, "bcdef"), part(1, 20, "xyz")), run: runs},
			},
			[]string{"attempt 1 a running", "note 1 10 bytes of the output of attempt 1 are left out here", "output 1 abc", "output 1 def",
				"note 1 4 bytes of the output of attempt 1 are left out here", "output 1 xyz"},
		},
		"an attempt that was too short to be followed": {
			[]followed{due, {live: failed, run: once, outputs: map[int]string{1: "all of it"}}},
			[]string{"waiting 0 all slots are busy", "output 1 all of it", "attempt 1 a failed", "end 0 failed over"},
		},
		"the rest was not passed on": {
			[]followed{{live: running(1, "a", part(1, 0, "one")), run: runs}, {live: failed, run: once, outputs: map[int]string{1: "one two"}}},
			[]string{"attempt 1 a running", "output 1 one", "note 1 attempt 1 may have printed more, which was not passed on; its output is stored with the run",
				"attempt 1 a failed", "end 0 failed over"},
		},
		"a run that has ended before": {
			[]followed{{live: failed, run: once, outputs: map[int]string{1: "all of it"}}},
			[]string{"output 1 all of it", "end 0 failed over"},
		},
		"what was read is older than the rest": {
			[]followed{{live: running(1, "a"), run: runs}, {live: failed, run: runs}, {live: failed, run: once}},
			[]string{"attempt 1 a running", "attempt 1 a failed", "end 0 failed over"},
		},
		"Redis is unreachable for a while": {
			[]followed{{live: running(1, "a", part(1, 0, "one")), run: runs}, {err: gone}, {live: running(1, "a", part(1, 0, "one"), part(1, 3, "two")), run: runs}},
			[]string{"attempt 1 a running", "output 1 one", "output 1 two"},
		},
		"its worker could not be asked": {
			[]followed{{live: ledger.Followed{State: ledger.StateRunning, Attempt: 1, Worker: "a", Refused: "NOPERM"}, run: runs}, {live: failed, run: once, outputs: map[int]string{1: "one"}}},
			[]string{"attempt 1 a running", "note 1 a its worker could not be asked for its output: NOPERM; the output follows when the attempt ends",
				"output 1 one", "attempt 1 a failed", "end 0 failed over"},
		},
	} {
		if got := reports(t, fromTheStart, c.states...); !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
	continued := func(reads FollowReads) *Follower {
		f := NewFollower("j#x", reads)
		f.Continue(1, 4)
		return f
	}
	got := reports(t, continued, followed{live: running(1, "a", part(1, 0, "one two")), run: runs})
	if want := []string{"output 1 two"}; !slices.Equal(got, want) {
		t.Errorf("a client that continues gets %q, want %q", got, want)
	}
}

func TestAWorkerThatPassesNothingOnIsReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		live := &ledger.Followed{State: ledger.StateRunning, Attempt: 1, Worker: "a"}
		run := &Run{State: ledger.StateRunning, Attempts: []Attempt{ran(1, "a", "")}}
		f := NewFollower("j#x", FollowReads{
			Live: func(context.Context, jobs.RunID, int64) (*ledger.Followed, error) { return live, nil },
			Run:  func(context.Context, jobs.RunID) (*Run, error) { return run, nil },
		})
		began, notes := time.Now(), 0
		for range 40 {
			events, err := f.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if e.Kind == FollowNote {
					notes++
					if took := time.Since(began); took < 2*time.Second || took > 5*time.Second || !strings.Contains(e.Text, "older build") {
						t.Errorf("after %s: %q, want it after some seconds, with the likely reason", took, e.Text)
					}
				}
			}
			time.Sleep(f.Pause())
		}
		if notes != 1 {
			t.Errorf("it is reported %d times, want once", notes)
		}
	})
}
