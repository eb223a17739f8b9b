package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// withSecret is a fleet that also has a job with a secret arg, an outstanding run and one that has
// ended.
func withSecret() *fakes.Fake {
	f := fakes.Fleet()
	args := json.RawMessage(`{"password":"hunter2","user":"ann"}`)
	job := &jobs.Job{Name: "sync", Queue: "default", Command: []string{"sync"}, Args: args, SecretArgs: []string{"password"}}
	f.Registered = append(f.Registered, ledger.JobRecord{Job: job})
	f.Open = append(f.Open, &ledger.Record{ID: "sync#open", Job: "sync", State: ledger.StateDue, Queue: "default", Created: fakes.Noon, Args: args})
	f.Ended["sync"] = []*ledger.Record{{ID: "sync#ended", Job: "sync", State: ledger.StateFailed, Created: fakes.Noon, Finished: fakes.Noon, Args: args}}
	return f
}

func TestSecretArgsAreHiddenInEveryAnswer(t *testing.T) {
	t.Parallel()
	f := withSecret()
	const hidden, plain = `{"password":"(hidden)","user":"ann"}`, `{"password":"hunter2","user":"ann"}`
	for want, r := range map[string]*Reader{hidden: readerOf(f), plain: readerOf(f).Revealing()} {
		ctx := t.Context()
		got := make(map[string]json.RawMessage)
		runs := must(r.Runs(ctx, RunFilter{Job: "sync"}))
		for _, run := range runs {
			got["list of runs: "+string(run.ID)] = run.Args
		}
		for _, id := range []jobs.RunID{"sync#open", "sync#ended"} {
			run, _, err := r.Run(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			got["run "+string(id)] = run.Args
			if run.Definition != nil {
				got["definition of the run "+string(id)] = run.Definition.Args
			}
		}
		one := must(r.Job(ctx, "sync"))
		got["job"], got["last run of the job"] = one.Args, one.LastRun.Args
		for _, job := range must(r.Jobs(ctx, Filter{}, "")) {
			if job.Name == "sync" {
				got["list of jobs"], got["last run in the list of jobs"] = job.Args, job.LastRun.Args
			}
		}
		overview := must(r.Overview(ctx, must(r.Snapshot(ctx))))
		for _, run := range append(overview.Pending, overview.Runs...) {
			if run.Job == "sync" {
				got["overview: "+string(run.ID)] = run.Args
			}
		}
		if len(got) != 11 {
			t.Errorf("got %d answers: %s", len(got), got)
		}
		for what, args := range got {
			if string(args) != want {
				t.Errorf("%s: got %s, want %s", what, args, want)
			}
		}
	}
	if got := string(f.Open[len(f.Open)-1].Args); got != plain {
		t.Errorf("the record itself was changed: %s", got)
	}
}

// Runs may wait for the first worker, which registers their job.
func TestArgsAreHiddenByTheDefinitionOfTheRunOrAsAWhole(t *testing.T) {
	t.Parallel()
	f := withSecret()
	f.Owned = map[jobs.RunID]*jobs.Job{"sync#open": f.Registered[len(f.Registered)-1].Job}
	f.Registered = f.Registered[:len(f.Registered)-1]
	for id, want := range map[jobs.RunID]string{"sync#open": `{"password":"(hidden)","user":"ann"}`, "sync#ended": `"(hidden)"`} {
		record, _, err := (&veil{f, f.ActiveJobs}).Find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(record.Args); got != want {
			t.Errorf("%s: got %s, want %s", id, got, want)
		}
	}
}

// broken is a fleet with runs of unreadable definitions.
type broken struct{ *fakes.Fake }

func (broken) Made(context.Context, *ledger.Record) (*jobs.Job, error) {
	return nil, fmt.Errorf("definition of a run: %w", ledger.ErrUnreadable)
}

// The definition of a run is older than the one that made an arg secret.
func TestARunShowsTheDefinitionThatItWasMadeWith(t *testing.T) {
	t.Parallel()
	f := withSecret()
	record := &f.Registered[len(f.Registered)-1]
	var err error
	if record.Hash, err = ledger.Hash(record.Job); err != nil {
		t.Fatal(err)
	}
	definitionOf := func(r *Reader, id jobs.RunID) *RunDefinition {
		t.Helper()
		run, _, err := r.Run(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return run.Definition
	}
	if d := definitionOf(readerOf(f), "sync#open"); !d.Active || string(d.Hash) != record.Hash || d.Work != "sync" {
		t.Errorf("got %+v, want the active definition %s", d, record.Hash)
	}
	if d := definitionOf(readerOf(f), "sync#ended"); d != nil {
		t.Errorf("a finished run whose definition is not kept has %+v", d)
	}

	const env = "hush-8d2f"
	older := &jobs.Job{Name: "sync", Queue: "default", Command: []string{"sync", "--all"}, Args: record.Job.Args, Env: map[string]string{"TOKEN": env}}
	f.Owned = map[jobs.RunID]*jobs.Job{"sync#open": older, "sync#ended": older}
	for id := range f.Owned {
		d := definitionOf(readerOf(f), id)
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if d.Active || string(d.Hash) == record.Hash || d.Hash == "" || d.Work != "sync --all" {
			t.Errorf("%s: got %s, want the older definition", id, text)
		}
		if strings.Contains(string(text), "hunter2") || strings.Contains(string(text), env) || !strings.Contains(string(text), jobs.Hidden) {
			t.Errorf("%s: got %s, want the arg hidden and no env", id, text)
		}
		if d := definitionOf(readerOf(f).Revealing(), id); !strings.Contains(string(d.Args), "hunter2") {
			t.Errorf("%s with --secret-args: got %s", id, d.Args)
		}
	}
	f.Registered = f.Registered[:len(f.Registered)-1]
	if d := definitionOf(readerOf(f), "sync#open"); d.Active || d.Work != "sync --all" {
		t.Errorf("without an active definition: got %+v", d)
	}

	f.Owned = nil
	r := ReaderOf(broken{f}, f)
	if d := definitionOf(r, "settle-bills#second"); d == nil || d.Hash != "" || d.Active || !strings.Contains(string(d.Problem), "cannot be read") {
		t.Errorf("an unreadable definition: got %+v", d)
	}
}
