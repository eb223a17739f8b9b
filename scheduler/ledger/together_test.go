package ledger_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// deployed are nine jobs before and after a deploy. The triggers of job0, job3 and job6 change, and
// the descriptions of job1, job4 and job7. The others are new.
func deployed() (before, after []*jobs.Job) {
	for i := range 9 {
		job := newJob(fmt.Sprintf("job%d", i))
		job.Description = fmt.Sprintf("definition %d", i)
		next := *job
		switch i % 3 {
		case 0:
			next.Every = time.Duration(i+1) * time.Hour
		case 1:
			next.Description += ", changed"
		}
		if after = append(after, &next); i%3 < 2 {
			before = append(before, job)
		}
	}
	return before, after
}

// TestJobsOfABatchGetTheirOwnOutcomes: the scripts read and write for all jobs of a batch together.
// Encoded definitions make no difference, also without their texts.
func TestJobsOfABatchGetTheirOwnOutcomes(t *testing.T) {
	for _, encoded := range []bool{false, true} {
		t.Run(fmt.Sprintf("encoded %v", encoded), func(t *testing.T) {
			each(t, func(f *fixture) {
				before, after := deployed()
				if _, err := f.Register(f.Context(), "old", before); err != nil {
					f.Fatal(err)
				}
				old := make(map[string]*jobs.Job)
				for _, job := range before {
					old[job.Name] = job
				}
				_, definitions, err := ledger.Digest(after)
				if err != nil {
					f.Fatal(err)
				}
				definitions[3].Forget()
				var registered *ledger.Registered
				if encoded {
					registered, err = f.RegisterEncoded(f.Context(), "new", definitions, true, func(job, hash string) *jobs.Job {
						if have, err := ledger.Hash(old[job]); err != nil || have != hash {
							f.Errorf("the old definition of %s is said to have the hash %s, want %s, %v", job, hash, have, err)
						}
						return old[job]
					})
				} else {
					registered, err = f.Register(f.Context(), "new", after)
				}
				if err != nil {
					f.Fatal(err)
				}
				for i, job := range after {
					one := registered.Jobs[job.Name]
					switch {
					case i%3 > 0:
						if one.Standing != ledger.StandingActive || one.Old != nil {
							f.Errorf("%s: %+v, want it active", job.Name, one)
						}
					case one.Standing != ledger.StandingChange || one.Old == nil || one.Old.Description != job.Description || one.Old.Every != time.Second:
						f.Errorf("%s: %+v, want a change from its own old definition", job.Name, one)
					case encoded && one.Old != old[job.Name]:
						f.Errorf("%s: its old definition is not the one that the caller has", job.Name)
					}
				}
				f.wantOrders(15)
				f.changesTogether(after, definitions, registered, encoded)
			})
		})
	}
}

// wantOrders checks that the definitions of each job have orders of their own, so many of them in
// all, and that the highest one is noted.
func (f *fixture) wantOrders(n int) {
	f.Helper()
	highest := f.rdb.HGet(f.Context(), f.key("ledger"), "order").Val()
	orders, noted := make(map[string]bool), false
	for name, text := range f.rdb.HGetAll(f.Context(), f.key("facts")).Val() {
		if !strings.HasPrefix(name, "v") {
			continue
		}
		for _, definition := range strings.Split(text, "\x1f")[1:] {
			order := strings.Split(definition, "\x1e")[1]
			orders[name+" "+order] = true
			if noted = noted || order == highest; len(order) > len(highest) || len(order) == len(highest) && order > highest {
				f.Errorf("a definition of %s has the order %s, and the highest is said to be %s", name[1:], order, highest)
			}
		}
	}
	if len(orders) != n || !noted {
		f.Errorf("the definitions have the orders %v, the highest is said to be %s, want %d of them", slices.Sorted(maps.Keys(orders)), highest, n)
	}
}

// changesTogether activates the definitions of job0, job3 and job6, and refuses others in the same
// batch.
func (f *fixture) changesTogether(after []*jobs.Job, definitions []*ledger.Encoded, registered *ledger.Registered, encoded bool) {
	f.Helper()
	session := f.session("w").Session()
	polled, err := f.Poll(f.Context(), session, "new", registered.Revision)
	if err != nil {
		f.Fatal(err)
	}
	var activations []ledger.Activation
	add := func(i int, seen, cursor time.Time, from *jobs.Job) {
		a := ledger.Activation{Job: after[i], From: from, Seen: seen, Cursor: cursor}
		if one := registered.Jobs[after[i].Name]; encoded && from == one.Old {
			a.Encoded, a.FromHash = definitions[i], one.OldHash
		}
		activations = append(activations, a)
	}
	one := func(i int) ledger.RegisteredJob { return registered.Jobs[after[i].Name] }
	add(0, one(0).Cursor, one(0).Cursor, one(0).Old)
	add(1, one(1).Cursor, one(1).Cursor, newJob("job1")) // that definition is not active
	add(3, one(3).Cursor, one(3).Cursor, one(3).Old)
	add(4, one(4).Cursor.Add(time.Second), one(4).Cursor, after[4])
	add(5, one(5).Cursor, one(5).Cursor.Add(time.Hour), after[5])
	add(6, one(6).Cursor, one(6).Cursor, one(6).Old)
	results := f.Activate(f.Context(), activations)
	for i, result := range results {
		var ok bool
		switch i {
		case 1:
			ok = result.Inactive
		case 3:
			ok = result.Moved && result.Cursor.Equal(one(4).Cursor)
		case 4:
			ok = result.Early
		default:
			ok = result.Cursor.Equal(activations[i].Cursor) && !result.Moved && !result.Early && !result.Inactive
		}
		if result.Err != nil || !ok {
			f.Errorf("change of %s: %+v", activations[i].Job.Name, result)
		}
	}
	next, err := f.Poll(f.Context(), session, "new", polled.Revision)
	if err != nil {
		f.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(next.Moved)); !slices.Equal(got, []string{"job0", "job3", "job6"}) || next.Revision != polled.Revision+3 {
		f.Errorf("the changes of %q have the revisions %d to %d, want those of job0, job3 and job6", got, polled.Revision, next.Revision)
	}
	for i, job := range after {
		hash, err := ledger.Hash(job)
		if moved, has := next.Moved[job.Name]; err != nil || has && moved.Active != hash {
			f.Errorf("%s has the active definition %s, want %s, %v", job.Name, moved.Active, hash, err)
		}
		record, err := f.Job(f.Context(), job.Name)
		if err != nil || record.Job.Every != job.Every || record.Job.Description != job.Description {
			f.Errorf("job%d is %+v, %v, want %+v", i, record, err, job)
		}
	}
	if again, err := f.Poll(f.Context(), session, "new", next.Revision-1); err != nil || len(again.Moved) != 1 {
		f.Errorf("one job has the last revision, but %v, %v", again.Moved, err)
	}
}

// TestARefusedDeployChangesNothing: a definition that is active is stored, although a key had the
// wrong type when it was registered or activated.
func TestARefusedDeployChangesNothing(t *testing.T) {
	for _, key := range []string{"def", "rev"} {
		t.Run(key, func(t *testing.T) {
			each(t, func(f *fixture) {
				stored := func(want *jobs.Job) {
					f.Helper()
					got, err := f.Job(f.Context(), want.Name)
					if err != nil {
						f.Fatalf("after the repair: %v", err)
					}
					if got.Job.Every != want.Every {
						f.Errorf("after the repair, the active definition runs every %s, want %s", got.Job.Every, want.Every)
					}
				}
				must := func(err error) {
					f.Helper()
					if err != nil {
						f.Fatal(err)
					}
				}
				// broken makes a call while another program has the key.
				broken := func(call func() error) {
					f.Helper()
					there := f.rdb.Exists(f.Context(), f.key(key)).Val() == 1
					if there {
						must(f.rdb.Rename(f.Context(), f.key(key), f.key("kept")).Err())
					}
					must(f.rdb.Set(f.Context(), f.key(key), "of another program", 0).Err())
					if err := call(); err == nil {
						f.Error("a call that cannot write was not refused")
					}
					must(f.rdb.Del(f.Context(), f.key(key)).Err())
					if there {
						must(f.rdb.Rename(f.Context(), f.key("kept"), f.key(key)).Err())
					}
				}
				before := newJob("j")
				after := *before
				after.Every = time.Hour
				register := func(digest string, job *jobs.Job) (*ledger.Registered, error) {
					return f.Register(f.Context(), digest, []*jobs.Job{job})
				}
				broken(func() error { _, err := register("old", before); return err })
				if _, err := register("old", before); err != nil {
					f.Fatal(err)
				}
				stored(before)

				registered, err := register("new", &after)
				if err != nil || registered.Jobs["j"].Standing != ledger.StandingChange {
					f.Fatalf("%+v (%v), want a change", registered, err)
				}
				seen := registered.Jobs["j"].Cursor
				activate := func() error {
					return f.Activate(f.Context(), []ledger.Activation{{Job: &after, From: before, Seen: seen, Cursor: seen}})[0].Err
				}
				broken(activate)
				stored(before)
				if err := activate(); err != nil {
					f.Fatal(err)
				}
				stored(&after)
			})
		})
	}
}
