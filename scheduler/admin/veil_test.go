package admin

import (
	"encoding/json"
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
		}
		one := must(r.Job(ctx, "sync"))
		got["job"], got["last run of the job"] = one.Args, one.LastRun.Args
		for _, job := range must(r.WithRuns(ctx, must(r.Jobs(ctx)))) {
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
		if len(got) != 10 {
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
