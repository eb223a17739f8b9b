package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// newer stores a definition of the fixture's job as a newer build writes it, and returns the text.
func (f *fixture) newer(old, new string, sign *jobs.Keys) string {
	f.Helper()
	text, _, err := f.job.Definition()
	if err != nil {
		f.Fatal(err)
	}
	newer := string(sign.Sign("j", []byte(strings.Replace(string(text), old, new, 1))))
	if err := f.rdb.HSet(f.Context(), f.key("def"), "j", newer).Err(); err != nil {
		f.Fatal(err)
	}
	return newer
}

func TestUnknownKeysOfADefinitionArePassedOn(t *testing.T) {
	each(t, func(f *fixture) {
		f.register(f.job)
		client := f.session("w")
		keys, err := jobs.NewKeys(f.namespace, newKey)
		if err != nil {
			f.Fatal(err)
		}
		for name, sign := range map[string]*jobs.Keys{"unsigned": nil, "signed": keys} {
			text := f.newer(`"retry":{`, `"zone":1,"retry":{"on":["x"],`, sign)
			definition := f.registered(f.Ledger, "j") // what views show
			if definition.Every != time.Second || !errors.Is(definition.CheckKeys(), jobs.ErrUnknownKeys) {
				t.Errorf("%s: it is read as %+v, %v", name, definition, definition.CheckKeys())
			}
			due := f.enqueues(f.Ledger, definition, name)
			if got := f.carried(due.Run); got != text {
				t.Errorf("%s: the run has %q, want the definition as it is stored: %q", name, got, text)
			}
			a := f.claim(client, due, ledger.ClaimGranted)
			if err := a.Job.CheckKeys(); err == nil || !strings.Contains(err.Error(), "retry.on, zone") {
				t.Errorf("%s: its claim says %v, want the keys", name, err)
			}
			f.finish(a, ledger.OutcomeFailure, ledger.FinishRecorded)
			if _, err := f.Reopen(f.Context(), ledger.Reopening{Run: due.Run, Job: definition, Any: true}); err != nil {
				t.Errorf("%s: reopen: %v", name, err)
			}
			if got := f.carried(due.Run); got != text {
				t.Errorf("%s: done again, the run has %q", name, got)
			}
		}
	})
}

func TestNoRunIsMadeWhoseLocksCannotBeTold(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 5)
		client := f.session("w")
		f.newer(`"lock":{`, `"lock":{"until":"x"`, nil)
		definition := f.registered(f.Ledger, "j")
		_, err := f.Enqueue(f.Context(), ledger.Request{Job: definition, ID: "x", Trigger: ledger.TriggerHand})
		_, again := f.Reopen(f.Context(), ledger.Reopening{Run: "j#y", Job: definition, Any: true})
		adoption := f.given(client, "z")
		adoption.Job = definition
		_, adopted := f.Adopt(f.Context(), adoption)
		for call, err := range map[string]error{"enqueue": err, "reopen": again, "adopt": adopted} {
			if !errors.Is(err, jobs.ErrUnknownKeys) {
				t.Errorf("%s: %v, want ErrUnknownKeys", call, err)
			}
		}
		if n := f.rdb.HLen(f.Context(), f.key("body")).Val(); n != 0 {
			t.Errorf("%d runs were made", n)
		}
		hash, err := ledger.Hash(definition)
		if err != nil {
			f.Fatal(err)
		}
		old, err := ledger.Hash(f.job)
		if err != nil {
			f.Fatal(err)
		}
		versions := f.rdb.HGet(f.Context(), f.key("facts"), "vj").Val()
		if err := f.rdb.HSet(f.Context(), f.key("facts"), "vj", strings.ReplaceAll(versions, old, hash)).Err(); err != nil {
			f.Fatal(err)
		}
		if created := f.decides(definition, cursor); created.Inactive || len(created.Due) != 0 {
			t.Errorf("a tick by it: %+v, want it recorded, and nothing due", created)
		}
		record := f.wantState(jobs.TickRunID("j", cursor.Add(time.Second)), ledger.StateFailed)
		if !strings.Contains(record.Reason, "lock.until") {
			t.Errorf("its reason is %q, want the key named", record.Reason)
		}
	})
}
