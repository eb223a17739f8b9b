package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// settling is what one attempt of the job of settler saw.
type settling struct {
	run     jobs.RunID
	account int
	note    string
	locks   []string
}

// settler adds a job that ticks every second and locks the account of its args. The first attempt
// of its first run fails.
func (f *fleet) settler(args string) (*jobs.Job, <-chan settling) {
	f.Helper()
	type arguments struct {
		Account int
		Note    string
	}
	seen := make(chan settling, 1000)
	failing := make(chan struct{}, 1)
	failing <- struct{}{}
	jobs.Handle(f.handlers, "accounts.settle", func(_ context.Context, r *jobs.Run[arguments]) error {
		seen <- settling{r.ID(), r.Args.Account, r.Args.Note, r.Locks()}
		select {
		case <-failing:
			return errors.New("no")
		default:
			return nil
		}
	})
	job := f.job("settle", func(context.Context, *jobs.Run[struct{}]) error { return nil }, func(j *jobs.Job) {
		j.Handler, j.Every, j.Retry.Max, j.Args = "accounts.settle", time.Second, 0, json.RawMessage(args)
		j.Lock.Exclusive = []string{"account:{account}"}
	})
	return job, seen
}

// next returns the next attempt at a run.
func next(seen <-chan settling, run jobs.RunID) settling {
	for one := range seen {
		if one.run == run {
			return one
		}
	}
	panic("unreachable: the channel is never closed")
}

// replaceArgs gives a worker's job other args, and waits until that definition is the active one.
func (f *fleet) replaceArgs(w *running, job *jobs.Job, args string) *jobs.Job {
	f.Helper()
	changed := *job
	changed.Args = json.RawMessage(args)
	if err := w.SetJobs(f.Context(), []*jobs.Job{&changed}, nil, "changed"); err != nil {
		f.Fatal(err)
	}
	var active ledger.JobRecord
	f.await("the changed definition to be active", func() bool {
		var err error
		active, err = f.ledger.Job(f.Context(), job.Name)
		return err == nil && jobs.SameArgs(active.Job.Args, changed.Args)
	})
	return active.Job
}

func (f *fleet) retry(record *ledger.Record, job *jobs.Job) error {
	f.Helper()
	due, err := f.ledger.Reopen(f.Context(), ledger.Reopening{Run: record.ID, Tick: record.Tick, Job: job, Args: record.Args,
		Templated: record.Templated, Act: &ledger.Act{Who: "ann", What: "retry run", On: string(record.ID)}})
	for _, d := range due {
		f.pushAndConfirm(d)
	}
	return err
}

func TestARetriedTickRunsWithTheArgsThatItsLocksAreReadFrom(t *testing.T) {
	f := newFleet(t)
	job, seen := f.settler(`{"account":7}`)
	w := f.start()
	first := <-seen
	record := f.awaitState(first.run, ledger.StateFailed)
	active := f.replaceArgs(w, job, `{"account":8}`)
	if err := f.retry(record, active); err != nil {
		t.Fatal(err)
	}
	again := next(seen, first.run)
	if again.account != 7 || !slices.Contains(again.locks, "account:7") {
		t.Errorf("the retry got account %d under the locks %v, want 7 under account:7", again.account, again.locks)
	}
	if done := f.awaitState(first.run, ledger.StateSucceeded); string(done.Args) != `{"account":7}` {
		t.Errorf("its record says %s, want account 7", done.Args)
	}
	for present := range seen { // a later tick has the present args
		if present.account == 8 {
			if !slices.Contains(present.locks, "account:8") {
				t.Errorf("a tick of the changed job has the locks %v, want account:8", present.locks)
			}
			break
		}
	}
}

func TestARetriedTickIsRefusedWhenOnlyItsOldDefinitionCouldReplaceItsArgs(t *testing.T) {
	f := newFleet(t)
	job, seen := f.settler(`{"account":7,"note":"${NOTE} <x>"}`)
	w := f.start(withNote)
	first := <-seen
	record := f.awaitState(first.run, ledger.StateFailed)
	if first.note != "hello <x>" {
		t.Errorf("the first attempt got the note %q, want it replaced", first.note)
	}
	active, err := f.ledger.Job(t.Context(), job.Name)
	if err != nil {
		t.Fatal(err)
	}
	// the args are those of the definition, and replaced again
	if err := f.retry(record, active.Job); err != nil {
		t.Fatal(err)
	}
	if again := next(seen, first.run); again.note != "hello <x>" {
		t.Errorf("the retry by the same definition got the note %q, want it replaced", again.note)
	}
	f.awaitState(first.run, ledger.StateSucceeded)

	changed := f.replaceArgs(w, job, `{"account":8}`)
	if err := f.retry(record, changed); !errors.Is(err, ledger.ErrRefused) || !strings.Contains(err.Error(), "replay") {
		t.Errorf("got %v, want a refusal that names the replay: no definition has these args any more", err)
	}
}

// TestARetriedRequestWithTheArgsOfItsJobIsRefusedWhenTheseHaveChanged, if they have ${...}: no
// definition could replace them. The same text in args that a client wrote is data, and stays
// unchanged.
func TestARetriedRequestWithTheArgsOfItsJobIsRefusedWhenTheseHaveChanged(t *testing.T) {
	f := newFleet(t)
	job, seen := f.settler(`{"account":7,"note":"${NOTE} <x>"}`)
	job.Every = 0
	w := f.start(withNote)
	own := f.enqueue(job, "own")
	if first := next(seen, own); first.note != "hello <x>" {
		t.Errorf("the first attempt got the note %q, want it replaced", first.note)
	}
	record := f.awaitState(own, ledger.StateFailed)
	if text := string(record.Args); !record.Templated || text != `{"account":7,"note":"${NOTE} <x>"}` {
		t.Errorf("its record has the args %s, want the text of the definition", text)
	}
	enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: "theirs", Trigger: ledger.TriggerEnqueue,
		Args: json.RawMessage(`{"account":9,"note":"${NOTE}"}`)})
	if err != nil {
		t.Fatal(err)
	}
	f.pushAndConfirm(enqueued.Due[0])
	theirs := f.awaitState(enqueued.Run, ledger.StateSucceeded)
	if again := next(seen, theirs.ID); again.note != "${NOTE}" || theirs.Templated {
		t.Errorf("the args of a client gave the note %q, want its text", again.note)
	}

	changed := f.replaceArgs(w, job, `{"account":8}`)
	if err := f.retry(record, changed); !errors.Is(err, ledger.ErrRefused) || !strings.Contains(err.Error(), "enqueue it again") {
		t.Errorf("got %v, want a refusal that names the way out: no definition has these args any more", err)
	}
	changed = f.replaceArgs(w, job, `{"account": 7, "note": "${NOTE} <x>"}`)
	if err := f.retry(record, changed); err != nil {
		t.Fatal(err)
	}
	if again := next(seen, own); again.note != "hello <x>" {
		t.Errorf("the retry by a definition with the same args got the note %q, want it replaced", again.note)
	}
	f.awaitState(own, ledger.StateSucceeded)
}

func TestATickThatIsReplayedUnderANewKeyKnowsItsTick(t *testing.T) {
	f := newFleet(t)
	type seen struct {
		tick time.Time
		key  string
	}
	attempts := make(chan seen, 2)
	job := f.job("daily", func(_ context.Context, r *jobs.Run[struct{}]) error {
		attempts <- seen{r.Tick(), r.IdempotencyKey()}
		return nil
	}, func(j *jobs.Job) { j.Every = 24 * time.Hour })
	f.start()
	tick := time.Now().Add(-72 * time.Hour).Truncate(24 * time.Hour)
	keys := make(map[string]bool)
	for range 2 {
		run := jobs.ReplayRunID(job.Name, tick, time.Now())
		due, err := f.ledger.Reopen(t.Context(), ledger.Reopening{Run: run, Job: job, Any: true})
		if err != nil || len(due) != 1 {
			t.Fatalf("%+v, %v, want it due", due, err)
		}
		f.pushAndConfirm(due[0])
		f.awaitState(run, ledger.StateSucceeded)
		got := <-attempts
		if !got.tick.Equal(tick) {
			t.Errorf("%s ran for the tick %v, want %v", run, got.tick, tick)
		}
		keys[got.key] = true
	}
	if len(keys) != 2 {
		t.Errorf("the keys %v, want two", keys)
	}
}

// withNote makes a worker replace ${NOTE} in args.
func withNote(o *worker.Options) {
	o.Expand = func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) {
		replaced := *job
		replaced.Args = bytes.ReplaceAll(job.Args, []byte("${NOTE}"), []byte("hello"))
		return &replaced, nil, nil
	}
}
