package ledger_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// given is a request that a worker has received, as far as known for the first time.
func (f *fixture) given(client *locks.Client, id string) ledger.Adoption {
	return ledger.Adoption{
		Job: f.job, Queue: "low", ID: id, Payload: []byte(`{"n": 1}`), Session: client.Session(), Giving: rand.Text(),
	}
}

func (f *fixture) adopt(a ledger.Adoption) *ledger.Enqueued {
	f.Helper()
	enqueued, err := f.Adopt(f.Context(), a)
	if err != nil {
		f.Fatal(err)
	}
	return enqueued
}

// adopted adopts a request that must become a run, and executes the run.
func (f *fixture) adopted(client *locks.Client, a ledger.Adoption, want jobs.RunID) {
	f.Helper()
	enqueued := f.adopt(a)
	if enqueued.Exists || enqueued.Run != want || enqueued.State != ledger.StateDue || len(enqueued.Due) != 1 || enqueued.Due[0].Queue != a.Queue {
		f.Fatalf("got %+v, want the new run %s", enqueued, want)
	}
	f.finish(f.claim(client, enqueued.Due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
}

func (f *fixture) thereAlready(a ledger.Adoption, want jobs.RunID, state ledger.State) {
	f.Helper()
	if got := f.adopt(a); !got.Exists || got.Run != want || got.State != state || got.Due != nil {
		f.Errorf("got %+v, want that run %s is there already (%s)", got, want, state)
	}
}

func TestAdoptedRequestIsOneRun(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		first := f.given(w, "4711")
		const run = "j#low/4711"
		enqueued := f.adopt(first)
		if enqueued.Run != run || enqueued.Exists || len(enqueued.Due) != 1 {
			f.Fatalf("got %+v, want a new run that is due", enqueued)
		}
		f.thereAlready(first, run, ledger.StateDue)              // sent again
		f.thereAlready(f.given(w, "4711"), run, ledger.StateDue) // delivered again, uncounted
		a := f.claim(w, enqueued.Due[0], ledger.ClaimGranted)
		if string(a.Args) != `{"n":1}` || a.Record.Trigger != ledger.TriggerEnqueue || a.Record.Queue != "low" {
			f.Errorf("got %+v with %s", a.Record, a.Args)
		}
		var held []string
		for _, item := range a.Items {
			held = append(held, item.Name)
		}
		if got := strings.Join(held, " "); got != "job:j run:"+run {
			f.Errorf("its attempt holds %s, want the lock of its job and its own", got)
		}
		f.thereAlready(f.given(w, "4711"), run, ledger.StateRunning)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.thereAlready(first, run, ledger.StateSucceeded) // a late copy of the first adoption
		again := f.given(w, "4711")
		again.Again = true
		f.thereAlready(again, run, ledger.StateSucceeded)
	})
}

func TestIDUsedAgainAfterItsRunIsANewRequest(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		// a short history does not shorten the memory; of two that end in one ms it may keep either
		f.job.History.Runs = 2
		first := f.given(w, "daily")
		f.adopted(w, first, "j#low/daily")
		f.adopted(w, f.given(w, "other"), "j#low/other")
		f.adopted(w, f.given(w, "daily"), "j#low/daily~2")
		f.adopted(w, f.given(w, "daily"), "j#low/daily~3")
		old := f.given(w, "daily")
		old.Again = true
		f.thereAlready(old, "j#low/daily~3", ledger.StateSucceeded)
		// a copy that was delayed for long
		f.thereAlready(first, "j#low/daily~3", ledger.StateSucceeded)
		f.adopted(w, f.given(w, "other"), "j#low/other~2")

		// A request that is delivered again but was never recorded becomes a run.
		lost := f.given(w, "lost")
		lost.Again = true
		f.adopted(w, lost, "j#low/lost")
		// Another queue and another job have their own ids.
		elsewhere := f.given(w, "daily")
		elsewhere.Queue = "high"
		f.adopted(w, elsewhere, "j#high/daily")
		other := f.given(w, "daily")
		other.Job = newJob("k")
		f.adopted(w, other, "k#low/daily")
	})
}

// withWord is a request that got its word just now, and comes again. No run was made in the
// same ms.
func (f *fixture) withWord(client *locks.Client, id string) ledger.Adoption {
	f.Helper()
	a := f.given(client, id)
	a.Again, a.Since = true, f.nextTime()
	return a
}

// nextTime waits until the server's time shows another ms, and returns it.
func (f *fixture) nextTime() (now time.Time) {
	f.Helper()
	begin, err := f.rdb.Time(f.Context()).Result()
	for now = begin; err == nil && now.UnixMilli() <= begin.UnixMilli(); {
		now, err = f.rdb.Time(f.Context()).Result()
	}
	if err != nil {
		f.Fatal(err)
	}
	return now
}

// TestARequestThatComesAgainIsANewRunUnlessItHasMadeOne adopts requests whose first delivery was
// lost, or its reply, while a run of an earlier request with the same id is remembered.
func TestARequestThatComesAgainIsANewRunUnlessItHasMadeOne(t *testing.T) {
	for _, name := range []string{"all is known", "the words are forgotten", "the history is", "the number of runs is", "only the record is known"} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				w := f.session("w")
				f.job.History.Runs = 20
				forget := func(a ledger.Adoption) {
					f.Helper()
					var err error
					const base = "j#low/daily"
					switch name {
					case "the words are forgotten":
						err = f.rdb.ZRem(f.Context(), f.key("ids"), "\x00"+a.Giving).Err()
						if last := f.rdb.HGet(f.Context(), f.key("facts"), "a"+base).Val(); err == nil && last != "" {
							err = f.rdb.HSet(f.Context(), f.key("facts"), "a"+base, strings.ReplaceAll(last, a.Giving, "other")).Err()
						}
					case "the history is":
						f.job.History.Runs = 1
						f.register(f.job)
						another := f.given(w, generatedID())
						f.adopted(w, another, jobs.RunID("j#low/"+another.ID))
					case "the number of runs is":
						err = f.rdb.HDel(f.Context(), f.key("facts"), "a"+base).Err()
					case "only the record is known":
						err = errors.Join(f.rdb.HDel(f.Context(), f.key("facts"), "a"+base).Err(),
							f.rdb.ZRem(f.Context(), f.key("ids"), base, "\x00"+a.Giving).Err())
					}
					if err != nil {
						f.Fatal(err)
					}
				}
				first := f.given(w, "daily")
				f.adopted(w, first, "j#low/daily")
				forget(first)
				for i := 2; i < 4; i++ {
					a := f.withWord(w, "daily")
					run := jobs.RunID(fmt.Sprint("j#low/daily~", i))
					f.adopted(w, a, run)
					forget(a)
					// its word shows that it was adopted, but not which run was its own
					known := name != "the number of runs is"
					if got := f.adopt(a); !got.Exists || known && got.Run != run {
						f.Errorf("got %+v, want that %s is there already", got, run)
					}
				}
			})
		})
	}
}

// TestARequestThatAnOlderBuildAdoptedInBetweenMakesNoSecondRun: that build knows nothing of the
// word that the request has.
func TestARequestThatAnOlderBuildAdoptedInBetweenMakesNoSecondRun(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		a := f.withWord(w, "daily") // and it was not adopted
		old := f.given(w, "daily")
		old.Again = true
		f.adopted(w, old, "j#low/daily") // and the reply was lost
		f.thereAlready(a, "j#low/daily", ledger.StateSucceeded)
		// Of an id that is forgotten, only a request that is as old can be the old one.
		if err := f.rdb.ZRem(f.Context(), f.key("ids"), "j#low/daily").Err(); err != nil {
			f.Fatal(err)
		}
		if err := f.rdb.HSet(f.Context(), f.key("facts"), "aj#low/daily", "3\x1eother").Err(); err != nil {
			f.Fatal(err)
		}
		older := f.withWord(w, "daily")
		older.Since = older.Since.Add(-8 * 24 * time.Hour)
		f.thereAlready(older, "j#low/daily~3", "")
		f.adopted(w, f.withWord(w, "daily"), "j#low/daily~4")
	})
}

// TestIDsAreRememberedForAWeek: then they are forgotten, with all that was kept of them.
func TestIDsAreRememberedForAWeek(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		f.adopted(w, f.given(w, "4711"), "j#low/4711")
		f.adopted(w, f.given(w, "4711"), "j#low/4711~2")
		until, err := f.rdb.ZScore(f.Context(), f.key("ids"), "j#low/4711").Result()
		if err != nil {
			f.Fatal(err)
		}
		if left := time.Until(time.UnixMilli(int64(until))); left < 7*24*time.Hour-time.Hour || left > 7*24*time.Hour+time.Hour {
			f.Errorf("it is remembered for %s, want 7 days", left)
		}
		if err := f.rdb.ZAdd(f.Context(), f.key("ids"), redis.Z{Score: 1, Member: "j#low/4711"}).Err(); err != nil {
			f.Fatal(err)
		}
		f.adopted(w, f.given(w, "other"), "j#low/other")
		facts, err := f.rdb.HKeys(f.Context(), f.key("facts")).Result()
		if err != nil {
			f.Fatal(err)
		}
		for _, field := range facts {
			if strings.HasPrefix(field, "aj#low/4711") {
				f.Errorf("%s is kept for an id that is forgotten", field)
			}
		}
		// An id that the history still has keeps its name.
		f.adopted(w, f.given(w, "4711"), "j#low/4711~3")
	})
}

// generatedID returns a random UUID, as asynq generates for a task without an id from its client.
func generatedID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// TestAGeneratedIDIsRememberedForMinutes adopts tasks with ids that asynq generated. They leave
// nothing in a key that is read as a whole, and a sweep forgets them when no other request comes.
func TestAGeneratedIDIsRememberedForMinutes(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		f.job.History.Runs = 1
		f.register(f.job)
		before := f.rdb.HLen(f.Context(), f.key("facts")).Val()
		const tasks = 120
		var last ledger.Adoption
		for range tasks {
			last = f.given(w, generatedID())
			f.adopted(w, last, jobs.RunID("j#low/"+last.ID))
		}
		if after := f.rdb.HLen(f.Context(), f.key("facts")).Val(); after > before {
			f.Errorf("%d tasks left %d facts", tasks, after-before)
		}
		entries, err := f.rdb.ZRangeWithScores(f.Context(), f.key("ids"), 0, -1).Result()
		if err != nil || len(entries) != 2*tasks {
			f.Errorf("%d tasks left %d entries, want one for each id and one for each delivery, %v", tasks, len(entries), err)
		}
		for _, entry := range entries {
			if left := time.Until(time.UnixMilli(int64(entry.Score))); left > 11*time.Minute {
				f.Fatalf("%q is remembered for %s, want 10 minutes", entry.Member, left)
			}
		}
		again := f.given(w, last.ID)
		again.Again = true
		// the history may have kept another run that ended in the same ms
		for _, a := range []ledger.Adoption{last, again} {
			if got := f.adopt(a); !got.Exists || got.Run != jobs.RunID("j#low/"+last.ID) {
				f.Errorf("got %+v, want that its run is there already", got)
			}
		}

		for i := range entries {
			entries[i].Score = 1
		}
		if err := f.rdb.ZAdd(f.Context(), f.key("ids"), entries...).Err(); err != nil {
			f.Fatal(err)
		}
		f.sweep()
		if left := f.rdb.ZCard(f.Context(), f.key("ids")).Val(); left != 0 {
			f.Errorf("%d entries are left after a sweep, want none", left)
		}
	})
}

// TestJobsAreReadWithoutTheIDsOfRequests lists jobs beside many ids from a build that kept all of
// them with the facts.
func TestJobsAreReadWithoutTheIDsOfRequests(t *testing.T) {
	each(t, func(f *fixture) {
		f.register(f.job)
		var fields []string
		for i := range 30_000 {
			fields = append(fields, fmt.Sprintf("aj#low/%d", i), "1\x1e"+rand.Text())
		}
		for some := range slices.Chunk(fields, 10_000) {
			if err := f.rdb.HSet(f.Context(), f.key("facts"), some).Err(); err != nil {
				f.Fatal(err)
			}
		}
		var counted commands
		f.rdb.AddHook(&counted)
		if all, err := f.Jobs(f.Context()); err != nil || len(all) != 1 || all[0].Silent.IsZero() {
			f.Fatalf("got %+v, %v", all, err)
		}
		// six, and those of a new connection; the ids have 30 pages
		if sent := counted.sent.Load(); sent > 12 {
			f.Errorf("one job was read with %d commands, want at most 12", sent)
		}
	})
}

// TestAnAdoptionOfAnotherBuildIsKnown lets two builds adopt requests side by side; the older one
// keeps everything that it remembers of an id with the facts.
func TestAnAdoptionOfAnotherBuildIsKnown(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		f.job.History.Runs = 1
		old := func(id string, runs int, giving string) {
			f.Helper()
			until := time.Now().Add(time.Hour).UnixMilli()
			base := "j#low/" + id
			if err := f.rdb.ZAdd(f.Context(), f.key("ids"), redis.Z{Score: float64(until), Member: base}).Err(); err != nil {
				f.Fatal(err)
			}
			if err := f.rdb.HSet(f.Context(), f.key("facts"), "a"+base, fmt.Sprintf("%d\x1e%s", runs, giving)).Err(); err != nil {
				f.Fatal(err)
			}
		}
		// A record of the older build, for a run that the history no longer has.
		old("4711", 3, "WORD")
		again := f.given(w, "4711")
		again.Again = true
		f.thereAlready(again, "j#low/4711~3", "")
		again.Again, again.Giving = false, "WORD"
		f.thereAlready(again, "j#low/4711~3", "")
		f.adopted(w, f.given(w, "4711"), "j#low/4711~4")
		if got := f.rdb.HGet(f.Context(), f.key("facts"), "aj#low/4711").Val(); !strings.HasPrefix(got, "4\x1e") || !strings.HasSuffix(got, "\x1eWORD") {
			f.Errorf("an older build reads %q of an id that was used again, want the number of its runs, and its own word", got)
		}

		// A record of this build: an older one finds the id, and the number of its runs if it has
		// more than one.
		f.adopted(w, f.given(w, "once"), "j#low/once")
		if until := f.rdb.ZScore(f.Context(), f.key("ids"), "j#low/once").Val(); int64(until) <= time.Now().UnixMilli() {
			f.Errorf("an older build finds the id remembered until %v", until)
		}
		f.adopted(w, f.given(w, "once"), "j#low/once~2")
		if got := f.rdb.HGet(f.Context(), f.key("facts"), "aj#low/once").Val(); !strings.HasPrefix(got, "2\x1e") {
			f.Errorf("an older build reads %q of an id that was used twice", got)
		}
	})
}

func TestRequestThatCannotBeRunIsAFailedRun(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		f.job.Lock.Exclusive = []string{"bill:{bill}"}
		for i, c := range []struct{ payload, args, reason string }{
			{"hello", `"hello"`, "the payload of the task is not JSON: invalid character 'h'"},
			{`{"bill": 1} x`, `"{\"bill\": 1} x"`, "not JSON"},
			{"\x08\x01\xff\n", `"\b\u0001` + "\uFFFD" + `\n"`, "not JSON"},
			{`{"bill": `, `"{\"bill\": "`, "not JSON"},
			{`{"n": 1}`, `{"n":1}`, `lock key "bill:{bill}": field "bill" of the args is missing`},
			{"", `{}`, `field "bill" of the args is missing`},
		} {
			a := f.given(w, fmt.Sprint(i))
			a.Payload = []byte(c.payload)
			enqueued := f.adopt(a)
			if enqueued.State != ledger.StateFailed || enqueued.Exists || enqueued.Due != nil {
				f.Fatalf("%q: got %+v, want a failed run", c.payload, enqueued)
			}
			record, _, err := f.Find(f.Context(), enqueued.Run)
			if err != nil {
				f.Fatal(err)
			}
			var got, want any
			if err := errors.Join(json.Unmarshal(record.Args, &got), json.Unmarshal([]byte(c.args), &want)); err != nil {
				f.Fatal(err)
			}
			if record.State != ledger.StateFailed || !strings.Contains(record.Reason, c.reason) || !reflect.DeepEqual(got, want) ||
				len(record.Attempts) != 0 || record.Finished.IsZero() {
				f.Errorf("%q: got %+v with %s, want it failed because %s, with %s", c.payload, record, record.Args, c.reason, c.args)
			}
			a.Again = true
			f.thereAlready(a, enqueued.Run, ledger.StateFailed)
		}
		// Without a payload the definition's arguments apply, as for any other request.
		f.job.Args = json.RawMessage(`{"bill": 7}`)
		a := f.given(w, "empty")
		a.Payload = nil
		f.adopted(w, a, "j#low/empty")
	})
}

// TestAnAdoptedRequestWithTheArgsOfItsJobIsRetriedOnlyWithThem, since a worker replaces their
// ${...} only for a definition that has them. The args of a client are data.
func TestAnAdoptedRequestWithTheArgsOfItsJobIsRetriedOnlyWithThem(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		const args = `{"note":"${NOTE}"}`
		f.job.Args = json.RawMessage(args)
		changed, locked := *f.job, *f.job
		changed.Args = json.RawMessage(`{"note":"x"}`)
		locked.Lock.Exclusive = []string{"bill:{bill}"}
		retry := func(run jobs.RunID, job *jobs.Job) ([]ledger.Due, error) {
			f.Helper()
			record := f.wantState(run, ledger.StateFailed)
			return f.Reopen(f.Context(), ledger.Reopening{Run: run, Job: job, Args: record.Args, Templated: record.Templated})
		}
		for _, c := range []struct {
			id, payload string
			job         *jobs.Job
			refused     bool
		}{
			{"empty", "", f.job, true},
			{"failed at once", "", &locked, true},
			{"client's", `{"note":"${NOTE}","n":1}`, f.job, false},
		} {
			a := f.given(w, c.id)
			a.Job, a.Payload = c.job, []byte(c.payload)
			enqueued := f.adopt(a)
			for _, due := range enqueued.Due {
				attempt := f.claim(w, due, ledger.ClaimGranted)
				if text := string(attempt.Args); c.payload == "" && text != args {
					f.Errorf("%s: the attempt has the args %q, want %s", c.id, text, args)
				}
				f.finish(attempt, ledger.OutcomeFailure, ledger.FinishRecorded)
			}
			if _, err := retry(enqueued.Run, &changed); errors.Is(err, ledger.ErrRefused) != c.refused {
				f.Errorf("%s: the retry by a definition with other args: %v, want it refused: %t", c.id, err, c.refused)
			}
			if !c.refused {
				continue
			}
			if text := string(f.find(enqueued.Run).Args); text != args {
				f.Errorf("%s: its record has the args %q, want %s", c.id, text, args)
			}
			if due, err := retry(enqueued.Run, f.job); err != nil || len(due) != 1 {
				f.Errorf("%s: the retry by a definition with the same args: %v, %v, want it due", c.id, due, err)
			}
		}
	})
}

// TestTasksAdoptedTogetherAreAdoptedAsAlone adopts tasks in every state of their ids at once, and
// again, as after a lost reply.
func TestTasksAdoptedTogetherAreAdoptedAsAlone(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		f.adopted(w, f.given(w, "ended"), "j#low/ended")
		f.adopt(f.given(w, "outstanding"))
		long, bad, late, old := f.given(w, "long"), f.given(w, "bad"), f.given(w, "late"), f.given(w, "old")
		bad.Payload, late.Late, old.Again = []byte("no JSON"), true, true
		long.Payload = []byte(`"` + strings.Repeat("x", 100<<10) + `"`)
		all := []ledger.Adoption{f.given(w, "new"), f.given(w, generatedID()), f.given(w, "ended"), f.given(w, "outstanding"), long, bad, late, old}
		for i := range 12 { // too much for one script
			another := f.given(w, fmt.Sprint("long-", i))
			another.Payload = long.Payload
			all = append(all, another)
		}
		check := func(what string, want []string) {
			f.Helper()
			for i := len(want); i < len(all); i++ {
				want = append(want, strings.ReplaceAll(want[4], "long", all[i].ID))
			}
			for i, reply := range f.AdoptAll(f.Context(), all) {
				got := fmt.Sprint(reply.Err)
				if reply.Err == nil {
					got = fmt.Sprintf("%s %s exists %t due %d", strings.TrimPrefix(string(reply.Run), "j#low/"), reply.State, reply.Exists, len(reply.Due))
				}
				if !strings.Contains(got, want[i]) {
					f.Errorf("%s, task %d: got %s, want %s", what, i, got, want[i])
				}
			}
		}
		check("at first", []string{
			"new due exists false due 1", all[1].ID + " due exists false due 1", "ended~2 due exists false due 1", "outstanding due exists true due 0",
			"long due exists false due 1", "bad failed exists false", "late failed exists false", "old due exists false due 1",
		})
		if record := f.find("j#low/late"); record.Reason != "the deadline of the task has passed" {
			f.Errorf("the late one failed because %q", record.Reason)
		}
		check("again", []string{
			"new due exists true", all[1].ID + " due exists true", "ended~2 due exists true", "outstanding due exists true",
			"long due exists true", "bad failed exists true", "late failed exists true", "old due exists true",
		})
		f.end(w)
		for i, reply := range f.AdoptAll(f.Context(), all) {
			if !errors.Is(reply.Err, ledger.ErrSession) {
				f.Errorf("after the session, task %d: got %+v, %v, want ErrSession", i, reply.Enqueued, reply.Err)
			}
		}
	})
}

func TestEndedSessionAdoptsNothing(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		late := f.given(w, "4711")
		f.end(w)
		if _, err := f.Adopt(f.Context(), late); !errors.Is(err, ledger.ErrSession) {
			f.Errorf("got %v, want ErrSession", err)
		}
		if _, _, err := f.Find(f.Context(), "j#low/4711"); !errors.Is(err, ledger.ErrUnknown) {
			f.Errorf("got %v, want no run", err)
		}
	})
}

func TestAnyTaskIDMakesAValidRunName(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		long := strings.Repeat("a", 300)
		seen := make(map[jobs.RunID]string)
		for _, c := range []struct{ queue, id, want string }{
			{"low", "4711", "low/4711"}, {"low", "a b", "low/a%20b"}, {"low", "a%20b", "low/a%2520b"}, {"low", "a~2", "low/a%7E2"},
			{"a/b", "c", "a%2Fb/c"}, {"a", "b/c", "a/b/c"}, {"low", "ä", "low/%C3%A4"}, {"low", "a'\"`\\", "low/a%27%22%60%5C"},
			{"low", "#@:{}", "low/#@:{}"}, {"low", long, "%sha256-"}, {"low", long + "a", "%sha256-"}, {"low", "\xff\x00\n", "low/%FF%00%0A"},
			{"low", "sha256-", "low/sha256-"},
		} {
			a := f.given(w, c.id)
			a.Queue = c.queue
			run := f.adopt(a).Run
			name := strings.TrimPrefix(string(run), "j#")
			if name != c.want && (!strings.HasPrefix(name, c.want) || c.want != "%sha256-") {
				f.Errorf("%q of queue %q is run %s, want %s", c.id, c.queue, name, c.want)
			}
			if err := jobs.ValidRunName(name + "~100"); err != nil {
				f.Error(err)
			}
			if other, taken := seen[run]; taken {
				f.Errorf("%q and %q are both %s", other, c.id, run)
			}
			seen[run] = c.id
			if run.Job() != "j" {
				f.Errorf("the job of %s is %q", run, run.Job())
			}
		}
	})
}
