package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// key returns the name of a key of the fleet's namespace.
func (f *fleet) key(name string) string { return "{" + f.namespace + "}:" + name }

// damage changes one field of a hash, which must have it.
func (f *fleet) damage(name string, run jobs.RunID, change func(string) string) {
	f.Helper()
	text, err := f.rdb.HGet(f.Context(), f.key(name), string(run)).Result()
	if err == nil {
		err = f.rdb.HSet(f.Context(), f.key(name), string(run), change(text)).Err()
	}
	if err != nil {
		f.Fatal(err)
	}
}

// TestRunThatCannotBeClaimedEndsAndHoldsUpNoOther has as many bad runs as the worker has slots.
func TestRunThatCannotBeClaimedEndsAndHoldsUpNoOther(t *testing.T) {
	for name, damage := range map[string]func(*fleet, jobs.RunID){
		"garbage": func(f *fleet, run jobs.RunID) { f.damage("run", run, func(string) string { return "garbage" }) },
		"cut short": func(f *fleet, run jobs.RunID) {
			f.damage("run", run, func(record string) string { return strings.Join(strings.Split(record, "\x1f")[:10], "\x1f") })
		},
		"a field that is no number": func(f *fleet, run jobs.RunID) {
			f.damage("run", run, func(record string) string {
				fields := strings.Split(record, "\x1f")
				fields[24] = "soon" // its deadline
				return strings.Join(fields, "\x1f")
			})
		},
		"a bundle that is none": func(f *fleet, run jobs.RunID) {
			f.damage("run", run, func(record string) string { return record + "\x1f?" })
		},
		"no definition": func(f *fleet, run jobs.RunID) {
			if err := f.rdb.HDel(f.Context(), f.key("body"), string(run)).Err(); err != nil {
				f.Fatal(err)
			}
		},
		"a definition that is not JSON": func(f *fleet, run jobs.RunID) {
			f.damage("body", run, func(string) string { return "{}\x1f{broken" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			var d done
			job := f.job("settle", d.handle)
			var bad []jobs.RunID
			for i := range 4 {
				bad = append(bad, f.enqueue(job, fmt.Sprint("bad", i)))
				damage(f, bad[i])
			}
			w := f.start(func(o *worker.Options) { o.Concurrency, o.DrainTimeout = 4, time.Second })
			for i := range 3 {
				f.awaitState(f.enqueue(job, fmt.Sprint(i)), ledger.StateSucceeded)
			}
			for _, run := range bad {
				f.await("the bad run to end", func() bool {
					record, _, err := f.ledger.Find(t.Context(), run)
					return err == nil && record.State == ledger.StateFailed
				})
				record := f.awaitState(run, ledger.StateFailed)
				why := record.Reason
				if last := record.Last(); last != nil {
					why += last.Error
				}
				if why == "" || !record.Started.IsZero() && record.Last() == nil {
					t.Errorf("%+v, want a reason", record)
				}
			}
			if got := d.all(); len(got) != 3 {
				t.Errorf("got runs %v, want the three good ones", got)
			}
			f.nothingIsLeft()
			w.stopsInTime(t, "the worker does not stop: it still sends what was refused")
		})
	}
}

// nothingIsLeft checks the keys that name outstanding runs, all of which have ended.
func (f *fleet) nothingIsLeft() {
	f.Helper()
	f.await("nothing to be outstanding", func() bool {
		left := 0
		for _, key := range []string{"timer", "ready", "push", "sent", "busy", "open", "late", "hold"} {
			left += int(f.rdb.ZCard(f.Context(), f.key(key)).Val())
		}
		for _, key := range []string{"run", "body", "log"} {
			left += int(f.rdb.HLen(f.Context(), f.key(key)).Val())
		}
		return left == 0
	})
}

// TestRunWhoseEndIsRefusedIsParkedAndHoldsUpNoOther has a key of a job's history that is of the
// wrong type.
func TestRunWhoseEndIsRefusedIsParkedAndHoldsUpNoOther(t *testing.T) {
	for _, key := range []string{"hist", "done", "output"} {
		t.Run(key, func(t *testing.T) {
			f := newFleet(t)
			job := f.job("settle", func(_ context.Context, r *jobs.Run[struct{}]) error {
				_, err := fmt.Fprintln(r.Output(), "done")
				return err
			})
			other := f.job("other", func(context.Context, *jobs.Run[struct{}]) error { return nil })
			if err := f.rdb.Set(t.Context(), f.key(key+":settle"), "x", 0).Err(); err != nil {
				t.Fatal(err)
			}
			w := f.start(func(o *worker.Options) { o.Concurrency, o.DrainTimeout = 4, time.Second })
			var bad []jobs.RunID
			for i := range 5 {
				bad = append(bad, f.enqueueAnyhow(job, fmt.Sprint(i)))
			}
			for i := range 3 {
				f.awaitState(f.enqueue(other, fmt.Sprint(i)), ledger.StateSucceeded)
			}
			f.await("the runs to be parked", func() bool {
				outstanding, err := f.ledger.Outstanding(t.Context(), "settle", 0)
				return err == nil && len(outstanding) == len(bad) && !slices.ContainsFunc(outstanding, func(r *ledger.Record) bool {
					return r.State != ledger.StateFailed || !strings.Contains(r.Reason, "WRONGTYPE") || !strings.Contains(r.Reason, "parked")
				})
			})
			for _, run := range bad { // each can be read, whatever is wrong with the history
				if record, _, err := f.ledger.Find(t.Context(), run); err != nil || !record.Parked {
					t.Errorf("%s: %+v, %v, want it to be found as parked", run, record, err)
				}
			}
			if n := f.rdb.ZCard(t.Context(), f.key("hold")).Val(); n != 0 {
				t.Errorf("%d holds are left", n)
			}
			// When the key has the right type again, a sweep moves them into the history.
			if err := f.rdb.Del(t.Context(), f.key(key+":settle")).Err(); err != nil {
				t.Fatal(err)
			}
			for _, run := range bad {
				if err := f.rdb.ZAddXX(t.Context(), f.key("late"), redis.Z{Score: 1, Member: string(run)}).Err(); err != nil {
					t.Fatal(err)
				}
			}
			f.nothingIsLeft()
			for _, run := range bad {
				if record := f.awaitState(run, ledger.StateFailed); !strings.Contains(record.Reason, "could not be recorded") {
					t.Errorf("reason %q", record.Reason)
				}
			}
			w.stopsInTime(t, "the worker does not stop: it still sends what was refused")
		})
	}
}

// enqueueAnyhow enqueues by a script that does not read the job's history: a key of it has the
// wrong type.
func (f *fleet) enqueueAnyhow(job *jobs.Job, id string) jobs.RunID {
	f.Helper()
	wrong := map[string]string{}
	for _, key := range []string{"hist", "done", "output"} {
		name := f.key(key + ":" + job.Name)
		if f.rdb.Type(f.Context(), name).Val() == "string" {
			wrong[name] = name + "-aside"
			if err := f.rdb.Rename(f.Context(), name, wrong[name]).Err(); err != nil {
				f.Fatal(err)
			}
		}
	}
	run := func() jobs.RunID {
		enqueued, err := f.ledger.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		return enqueued.Run // the sweep pushes it
	}()
	for name, aside := range wrong {
		if err := f.rdb.Rename(f.Context(), aside, name).Err(); err != nil {
			f.Fatal(err)
		}
	}
	return run
}

// TestRunThatIsRefusedByRightsHoldsUpNoOther: not even the end of such a run can be recorded. It
// stays unchanged.
func TestRunThatIsRefusedByRightsHoldsUpNoOther(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	var d done
	bad := f.job("settle", d.handle)
	good := f.job("other", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	// All keys but those of the history of settle.
	rule := []any{"ACL", "SETUSER", "w", "on", "nopass", "+@all", "&*", "~asynq*", "~lockstep:*", "~" + f.key("[^h]*"), "~" + f.key("ho*"),
		"~" + f.key("hist:other")}
	if err := f.rdb.Do(t.Context(), rule...).Err(); err != nil {
		t.Fatal(err)
	}
	w := f.start(func(o *worker.Options) {
		options := *f.rdb.Options()
		options.Username, options.Password = "w", "any"
		rdb := redis.NewClient(&options)
		f.Cleanup(func() { _ = rdb.Close() })
		o.Redis, o.Concurrency, o.DrainTimeout = rdb, 4, time.Second
	})
	var refused []jobs.RunID
	for i := range 4 {
		refused = append(refused, f.enqueue(bad, fmt.Sprint(i)))
	}
	for i := range 3 {
		f.awaitState(f.enqueue(good, fmt.Sprint(i)), ledger.StateSucceeded)
	}
	w.stopsInTime(t, "the worker does not stop: it still sends what was refused")
	// several may have been claimed together, which needs no key of their job
	for _, run := range refused {
		if state, err := f.rdb.HGet(t.Context(), f.key("run"), string(run)).Result(); err != nil ||
			!strings.HasPrefix(state, "due\x1f") && !strings.HasPrefix(state, "running\x1f") {
			t.Errorf("run %s is %q, %v; want it as it was", run, state, err)
		}
	}
}

// TestDrainIsBoundedWhileClaimsGetNoReply: each claim is applied, and its reply lost, while
// renewals get replies.
func TestDrainIsBoundedWhileClaimsGetNoReply(t *testing.T) {
	f := newFleet(t)
	job := f.job("settle", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	var lost atomic.Int32
	claims := func(request string) bool { return strings.Contains(request, "\r\nsettle#x\r\n") }
	w := f.start(f.lossy(claims, func() { lost.Add(1) }), func(o *worker.Options) { o.DrainTimeout = 200 * time.Millisecond })
	f.enqueue(job, "x")
	f.await("claims to be lost", func() bool { return lost.Load() > 2 })
	w.stopsInTime(t, "the worker does not stop: it still sends its claims")
}

// TestStrayEntriesOfNoRunDoNotKeepTheSweepFromTheOthers: each index of the ledger names runs that
// have no record.
func TestStrayEntriesOfNoRunDoNotKeepTheSweepFromTheOthers(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("settle", d.handle)
	stray := map[string]string{
		"push": "settle#stray", "sent": "settle#stray", "timer": "settle#stray", "late": "settle#stray",
		"busy": "gone.12345678\x00settle#stray", "open": "settle\x000000000000000000\x00settle#stray",
		"ready": f.queue + "\x000000000000000001\x00settle#stray",
	}
	for key, member := range stray {
		if err := f.rdb.ZAdd(t.Context(), f.key(key), redis.Z{Score: 0, Member: member}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	f.start()
	enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: "x", Trigger: ledger.TriggerEnqueue})
	if err != nil {
		t.Fatal(err)
	}
	f.awaitState(enqueued.Run, ledger.StateSucceeded) // it has no delivery but the sweep's
	outstanding, err := f.ledger.Outstanding(t.Context(), "", 0)
	if err != nil || len(outstanding) != 0 {
		t.Errorf("outstanding %v, %v; want none", outstanding, err)
	}
}
