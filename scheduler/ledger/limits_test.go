package ledger

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestWhatIsTooLargeIsRefusedOnEntry covers each producer of the ledger: nothing of it is in Redis
// afterward.
func TestWhatIsTooLargeIsRefusedOnEntry(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	space, err := locks.NewSpace(rdb, redistest.Namespace(t))
	if err != nil {
		t.Fatal(err)
	}
	l := New(rdb, space)
	l.LimitArgs(1000)
	job := &jobs.Job{Name: "settle", Handler: "settle", Queue: "q", History: jobs.History{Runs: 10, For: 1e12}}
	large, reason := json.RawMessage(`"`+strings.Repeat("x", 999)+`"`), strings.Repeat("y", jobs.MaxReason+1)
	act := Act{Who: "a", What: "b", On: "c", Why: reason}
	good, err := l.Enqueue(t.Context(), Request{Job: job, ID: "good", Trigger: TriggerEnqueue, Args: json.RawMessage(`"` + strings.Repeat("x", 998) + `"`)})
	if err != nil || good.State != StateDue {
		t.Fatalf("args of exactly 1000 bytes: %+v, %v", good, err)
	}
	for what, do := range map[string]func() error{
		"enqueue": func() error {
			_, err := l.Enqueue(t.Context(), Request{Job: job, ID: "x", Trigger: TriggerEnqueue, Args: large})
			return err
		},
		"enqueue with a reason": func() error {
			_, err := l.Enqueue(t.Context(), Request{Job: job, ID: "x", Trigger: TriggerHand, Act: &act})
			return err
		},
		"run again": func() error {
			_, err := l.Reopen(t.Context(), Reopening{Run: "settle#x", Job: job, Args: large, Any: true})
			return err
		},
		"cancel": func() error { _, err := l.Cancel(t.Context(), good.Run, job, act); return err },
		"pause":  func() error { _, err := l.Pause(t.Context(), "settle", act); return err },
		"drain":  func() error { _, err := l.Drain(t.Context(), "w.12345678", act); return err },
	} {
		if err := do(); !errors.Is(err, jobs.ErrTooLarge) || !jobs.IsPermanent(err) {
			t.Errorf("%s: %v, want a permanent ErrTooLarge", what, err)
		}
	}
	runs, err := l.Outstanding(t.Context(), "", 0)
	if err != nil || len(runs) != 1 || runs[0].State != StateDue {
		t.Errorf("outstanding %v, %v; want the one good run, due", runs, err)
	}
}

func TestAdoptedTaskWithTooLargeArgsIsAFailedRunThatSaysSo(t *testing.T) {
	t.Parallel()
	a := Adoption{Job: &jobs.Job{Name: "settle"}, Queue: "q", ID: "1", Payload: []byte(`"` + strings.Repeat("x", 200_000) + `"`)}
	args, _, reason := a.read("settle#q/1", 0)
	if string(args) != "null" || !strings.Contains(reason, "limits.args") {
		t.Errorf("args of %d bytes, reason %q; want none, and the limit named", len(args), reason)
	}
	a.Payload = []byte(`{"x":` + strings.Repeat(" ", 200_000) + `1}`) // blanks are removed
	if args, _, reason = a.read("settle#q/1", 0); string(args) != `{"x":1}` || reason != "" {
		t.Errorf("args %.20s, reason %q; want them kept", args, reason)
	}
}
