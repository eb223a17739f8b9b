package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// errCut is the error of a sender after its connection was cut.
var errCut = errors.New("the connection is cut")

// cutSender is a hook that lets so many scripts through. Those behind it fail: after they were
// executed if late, else before.
type cutSender struct {
	left atomic.Int32
	late bool
	then func() // before the first script that fails, if not nil
}

func (*cutSender) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *cutSender) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" && cmd.Name() != "eval" || h.left.Add(-1) >= 0 {
			return next(ctx, cmd)
		}
		if h.then != nil {
			h.then()
			return next(ctx, cmd)
		}
		if h.late {
			h.late = false
			_ = next(ctx, cmd)
		}
		cmd.SetErr(errCut)
		return errCut
	}
}

func (*cutSender) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// sender returns the ledger of another process. Its scripts go through a hook. Redis knows the
// scripts of lists, so each is one command.
func (f *fixture) sender(h *cutSender) *ledger.Ledger {
	f.Helper()
	open := func(rdb *redis.Client, namespace string) *ledger.Ledger {
		space, err := locks.NewSpace(rdb, namespace)
		if err != nil {
			f.Fatal(err)
		}
		return ledger.New(rdb, space)
	}
	if _, err := open(f.rdb, f.namespace+"-warm").EnqueueAll(f.Context(), ledger.List{Items: bills(bulky("a"), 201), Atomic: true}); err != nil {
		f.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Network: f.rdb.Options().Network, Addr: f.rdb.Options().Addr})
	f.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(h)
	return open(rdb, f.namespace)
}

// bills returns requests with the ids 0000, 0001 and so on.
func bills(job *jobs.Job, n int) (items []ledger.Request) {
	for i := range n {
		items = append(items, bill(job, fmt.Sprintf("%04d", i), i))
	}
	return items
}

// wantWhole checks that all runs of the lists of bills are recorded or none, and that nothing of
// them is staged.
func (f *fixture) wantWhole(when string, n int) {
	f.Helper()
	if got, err := f.rdb.HLen(f.Context(), f.key("run")).Result(); err != nil || got != int64(n) {
		f.Errorf("%s: %d runs are recorded, %v, want %d", when, got, err, n)
	}
	if staged, err := f.rdb.HKeys(f.Context(), f.key("lists")).Result(); err != nil || len(staged) > 0 {
		f.Errorf("%s: %q are staged, %v, want nothing", when, staged, err)
	}
}

// TestALongAtomicListIsRecordedInParts: a request gets the same reply as in a list of one part.
func TestALongAtomicListIsRecordedInParts(t *testing.T) {
	each(t, func(f *fixture) {
		f.session("w")
		job := bulky("a")
		items := bills(job, 450)
		items[3].ID, items[449].ID = items[2].ID, items[0].ID // in one part, and in two
		items[5].In = time.Hour
		f.enqueueAll(ledger.List{Items: items[400:401]})
		act := &ledger.Act{Who: "ann", What: "enqueue", On: "a"}
		for i, r := range f.enqueueAll(ledger.List{Items: items, Atomic: true, Act: act}) {
			state, exists := ledger.StateDue, i == 3 || i == 449 || i == 400
			if i == 5 {
				state = ledger.StateScheduled
			}
			if r.Err != nil || r.State != state || r.Exists != exists || r.Run != jobs.RequestRunID("a", items[i].ID) || len(r.Due) == 1 == (exists || i == 5) {
				f.Fatalf("items[%d]: got %+v", i, r.Enqueued)
			}
		}
		f.wantWhole("at last", 448)
		for i, r := range f.enqueueAll(ledger.List{Items: items, Atomic: true, Act: act}) {
			if r.Err != nil || !r.Exists {
				f.Fatalf("sent again, items[%d]: got %+v", i, r.Enqueued)
			}
		}
		f.wantWhole("sent again", 448)
		f.wantDefinitions("at last", 1)
		entries, err := f.rdb.XRange(f.Context(), f.key("audit"), "-", "+").Result()
		if err != nil || len(entries) != 1 || fmt.Sprint(entries[0].Values["n"]) != "447" {
			f.Errorf("got the entries %v, %v; want one of 447 requests", entries, err)
		}
	})
}

// TestAWorkerRecordsTheRestOfAnAtomicList: its sender dies before each script, or before it gets
// the reply.
func TestAWorkerRecordsTheRestOfAnAtomicList(t *testing.T) {
	each(t, func(f *fixture) {
		for _, late := range []bool{false, true} {
			for executed := range int32(4) { // one stages the list, and three record its parts
				when := fmt.Sprintf("cut after %d scripts, the next one is executed: %t", executed, late)
				cut := &cutSender{late: late}
				cut.left.Store(executed)
				job := bulky(fmt.Sprintf("j%d%t", executed, late))
				items := bills(job, 450)
				items[449].In = time.Hour
				replies, err := f.sender(cut).EnqueueAll(f.Context(), ledger.List{Items: items, Atomic: true})
				if errors.Is(err, errCut) != (executed == 0) || err != nil && !strings.Contains(err.Error(), "if the list is stored nevertheless") {
					f.Fatalf("%s: %v, want the error of the connection, unless the list is stored", when, err)
				}
				want, done := 450, int(executed)
				if late {
					done++
				}
				if done == 0 {
					want = 0
				}
				for i, r := range replies {
					if pending := i >= 200*(int(executed)-1); errors.Is(r.Err, ledger.ErrPending) != pending || (r.Enqueued == nil) != pending {
						f.Fatalf("%s, items[%d]: got %+v", when, i, r)
					}
				}
				if got, recorded := len(f.recorded()), min(450, 200*max(0, done-1)); got != recorded {
					f.Errorf("%s: %d runs are recorded, want %d", when, got, recorded)
				}
				if due, err := f.RecordStaged(f.Context(), time.Hour); err != nil || len(due) > 0 {
					f.Errorf("%s: %v, %v, want the list of a living sender to stay", when, due, err)
				}
				if lists, err := f.Staged(f.Context()); err != nil || len(lists) != btoi(0 < done && done < 4) {
					f.Errorf("%s: %v, %v are staged after a worker has looked for lists of an hour ago", when, lists, err)
				}
				// Whatever has ended and left the history in the meantime is not recorded again.
				gone := f.recorded()
				f.forgetRuns()
				due, err := f.RecordStaged(f.Context(), 0)
				if err != nil || len(due) != max(0, want-len(gone)-1) {
					f.Errorf("%s: %d runs are due, %v", when, len(due), err)
				}
				f.wantWhole(when, want-len(gone))
				if n := f.rdb.ZCard(f.Context(), f.key("timer")).Val(); n != int64(want/450) {
					f.Errorf("%s: %d runs are scheduled, want %d", when, n, want/450)
				}
				f.forgetRuns()
				f.rdb.Del(f.Context(), f.key("timer"))
			}
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestARequestOfAnAtomicListIsRecordedOnce although its sender and several workers record the list
// at the same time. The audit counts the runs that each of them has made.
func TestARequestOfAnAtomicListIsRecordedOnce(t *testing.T) {
	each(t, func(f *fixture) {
		for round := range 6 {
			items := bills(bulky(fmt.Sprint("j", round)), 900)
			ctx, stop := context.WithCancel(f.Context())
			var workers sync.WaitGroup
			for range 3 {
				workers.Go(func() {
					for ctx.Err() == nil {
						if _, err := f.RecordStaged(f.Context(), 0); err != nil {
							f.Error(err)
							return
						}
					}
				})
			}
			replies := f.enqueueAll(ledger.List{Items: items, Atomic: true, Act: &ledger.Act{Who: "ann", What: "enqueue", On: "j"}})
			stop()
			workers.Wait()
			for i, r := range replies {
				if r.Err != nil || r.Run == "" {
					f.Fatalf("items[%d]: got %+v", i, r)
				}
			}
			f.wantWhole("at last", 900*(round+1))
		}
		entries, err := f.rdb.XRange(f.Context(), f.key("audit"), "-", "+").Result()
		if err != nil || len(entries) != 1 || fmt.Sprint(entries[0].Values["n"]) != "5400" {
			f.Errorf("got the entries %v, %v; want one of 5,400 requests", entries, err)
		}
	})
}

// TestASlowSenderOfAnAtomicListRecordsNothingAgain: before one of its scripts, a worker has
// recorded the list, and the runs have ended and left the history.
func TestASlowSenderOfAnAtomicListRecordsNothingAgain(t *testing.T) {
	each(t, func(f *fixture) {
		for executed := int32(1); executed < 4; executed++ {
			var once sync.Once
			slow := &cutSender{then: func() {
				once.Do(func() {
					if _, err := f.RecordStaged(f.Context(), 0); err != nil {
						f.Error(err)
					}
					f.wantWhole("the worker is done", 450)
					f.forgetRuns()
				})
			}}
			slow.left.Store(executed)
			replies, err := f.sender(slow).EnqueueAll(f.Context(), ledger.List{Items: bills(bulky("a"), 450), Atomic: true})
			if unknown := err != nil && strings.Contains(err.Error(), "no longer stored"); unknown != (executed == 1) {
				f.Fatal(err)
			}
			for i, r := range replies {
				if made := i < 200*int(executed-1); (r.Err == nil) != made || made && (r.Exists || r.Run == "") || errors.Is(r.Err, ledger.ErrPending) {
					f.Fatalf("slow after %d scripts, items[%d]: got %+v", executed, i, r)
				}
			}
			f.wantWhole("at last", 0)
		}
	})
}

// forgetRuns removes all runs, as if they had ended and left the history, except from some keys.
func (f *fixture) forgetRuns(except ...string) {
	f.Helper()
	for _, key := range []string{"run", "body", "open", "ready", "push", "ids"} {
		if !slices.Contains(except, key) {
			f.rdb.Del(f.Context(), f.key(key))
		}
	}
}

// TestARefusalAfterAListIsStaged: of its first part, it drops the list. Of a later one, it leaves
// the rest to a worker, which records it once Redis no longer refuses.
func TestARefusalAfterAListIsStaged(t *testing.T) {
	each(t, func(f *fixture) {
		for executed := range int32(4) {
			cut := &cutSender{then: func() {
				f.rdb.Rename(f.Context(), f.key("open"), f.key("kept"))
				f.rdb.Set(f.Context(), f.key("open"), "of another program", 0)
			}}
			cut.left.Store(executed)
			f.enqueues(f.Ledger, f.job, "first")
			replies, err := f.sender(cut).EnqueueAll(f.Context(), ledger.List{Items: bills(bulky("a"), 450), Atomic: true})
			if (err == nil) != (executed > 1) {
				f.Errorf("refused after %d scripts: %v", executed, err)
			}
			for i, r := range replies {
				if pending := i >= 200*int(executed-1); errors.Is(r.Err, ledger.ErrPending) != pending {
					f.Fatalf("refused after %d scripts, items[%d]: got %+v", executed, i, r)
				}
			}
			if executed > 1 {
				if _, err := f.RecordStaged(f.Context(), 0); err == nil {
					f.Error("Redis refuses the rest, and no error says so")
				}
			}
			f.rdb.Del(f.Context(), f.key("open"))
			f.rdb.Rename(f.Context(), f.key("kept"), f.key("open"))
			if _, err := f.RecordStaged(f.Context(), 0); err != nil {
				f.Error(err)
			}
			want := 1
			if executed > 1 {
				want = 451
			}
			f.wantWhole(fmt.Sprintf("refused after %d scripts", executed), want)
			f.forgetRuns()
		}
	})
}

// TestStagedListsAreBounded: so many senders have died, and no worker records what they left.
func TestStagedListsAreBounded(t *testing.T) {
	large(t, func(f *fixture) {
		cut := &cutSender{}
		sender := f.sender(cut)
		for n := range 205 {
			cut.left.Store(1)
			_, err := sender.EnqueueAll(f.Context(), ledger.List{Items: bills(bulky(fmt.Sprint("j", n)), 201), Atomic: true})
			if full := err != nil && strings.Contains(err.Error(), "too many atomic lists are being recorded"); full != (n >= 200) {
				f.Fatalf("list %d: %v", n, err)
			}
		}
		if lists, err := f.Staged(f.Context()); err != nil || len(lists) != 200 {
			f.Errorf("%d lists are staged, %v", len(lists), err)
		}
		if _, err := f.RecordStaged(f.Context(), 0); err != nil {
			f.Error(err)
		}
		f.wantWhole("at last", 200*201)
	})
}

// TestAnUnreadableStagedListSpoilsNoOther: another program wrote it, or has removed a part of it.
func TestAnUnreadableStagedListSpoilsNoOther(t *testing.T) {
	each(t, func(f *fixture) {
		cut := &cutSender{}
		cut.left.Store(1)
		if replies, err := f.sender(cut).EnqueueAll(f.Context(), ledger.List{Items: bills(bulky("a"), 250), Atomic: true}); err != nil || replies[0].Err == nil {
			f.Fatalf("the sender is alive: %v", err)
		}
		list := ""
		for field, text := range f.rdb.HGetAll(f.Context(), f.key("lists")).Val() {
			if strings.HasPrefix(field, "l:") {
				list = text
			}
		}
		f.rdb.HSet(f.Context(), f.key("lists"), "l:text", "no list", "n:text", "1 0", "l:alone", list, "n:alone", "1 0", "n:done", "1 250", "l:done", list,
			"l:half", list, "n:progress", "1 0", "n:junk", "junk", "l:junk", list, "stray", "x")
		f.rdb.HDel(f.Context(), f.key("lists"), "n:half")
		_, err := f.RecordStaged(f.Context(), 0)
		for _, name := range []string{"text", "done", "half", "progress", "junk"} {
			if want := fmt.Sprintf("redis-cli HDEL %s l:%s n:%[2]s", f.key("lists"), name); err == nil || !strings.Contains(err.Error(), want) {
				f.Errorf("%v, want it to say %q", err, want)
			}
		}
		if err != nil && strings.Contains(err.Error(), "alone") {
			f.Errorf("a list is recorded under two names: %v", err)
		}
		f.rdb.Del(f.Context(), f.key("lists"))
		f.wantWhole("at last", 250)
	})
}

// TestAListThatIsSentAgainWhileItIsStaged is the same list: a worker does not record it once more.
func TestAListThatIsSentAgainWhileItIsStaged(t *testing.T) {
	each(t, func(f *fixture) {
		list := ledger.List{Items: bills(bulky("a"), 450), Atomic: true, Act: &ledger.Act{Who: "ann", What: "enqueue", On: "a"}}
		for executed := range int32(3) {
			cut := &cutSender{late: true}
			cut.left.Store(executed)
			if _, err := f.sender(cut).EnqueueAll(f.Context(), list); (err != nil) != (executed == 0) {
				f.Fatal(err)
			}
			for i, r := range f.enqueueAll(list) {
				if r.Err != nil || r.Exists != (i < 200*int(executed)) {
					f.Fatalf("cut after %d scripts, items[%d]: got %+v, %v", executed, i, r.Enqueued, r.Err)
				}
			}
			f.wantWhole("sent again", 450)
			f.forgetRuns()
		}
	})
}

// TestAnAtomicListThatIsLostIsNotConfirmed: Redis loses all data before one of its parts.
func TestAnAtomicListThatIsLostIsNotConfirmed(t *testing.T) {
	each(t, func(f *fixture) {
		for executed := int32(1); executed < 4; executed++ {
			lost := &cutSender{then: func() {
				f.forgetRuns()
				f.rdb.Del(f.Context(), f.key("lists"))
			}}
			lost.left.Store(executed)
			replies, err := f.sender(lost).EnqueueAll(f.Context(), ledger.List{Items: bills(bulky("a"), 450), Atomic: true})
			last := len(replies) - 1
			if err == nil && (replies[last].Err == nil || errors.Is(replies[last].Err, ledger.ErrPending)) {
				f.Errorf("lost after %d scripts: got %+v", executed, replies[last])
			}
		}
	})
}

// TestALongListKeepsItsArgs as they are, up to the bound, also when a worker records it.
func TestALongListKeepsItsArgs(t *testing.T) {
	each(t, func(f *fixture) {
		job := newJob("a")
		job.Every = 0
		args := json.RawMessage(`{"x":"` + strings.Repeat(`<\"\u0026>é`, 300) + "\xff" + `"}`)
		var items []ledger.Request
		for i := range 230 {
			items = append(items, ledger.Request{Job: job, ID: fmt.Sprint(i), Args: args, Trigger: ledger.TriggerEnqueue})
		}
		cut := &cutSender{}
		cut.left.Store(1)
		if _, err := f.sender(cut).EnqueueAll(f.Context(), ledger.List{Items: items, Atomic: true}); err != nil {
			f.Fatal(err)
		}
		if _, err := f.RecordStaged(f.Context(), 0); err != nil {
			f.Fatal(err)
		}
		record, _, err := f.Find(f.Context(), "a#229")
		if err != nil || string(record.Args) != string(args) {
			f.Errorf("%v, the args are %.60q..., want %.60q...", err, record.Args, args)
		}
	})
}
