package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// told makes the job of a fixture notify two targets: ops of everything, hook of what was lost and
// missed.
func (f *fixture) told() {
	f.job.Notify = []jobs.Notify{
		{Target: "hook", On: []jobs.Event{jobs.EventLost, jobs.EventMissed}},
		{Target: "ops", On: jobs.Events()},
	}
}

// mail returns the messages that wait, in the order of their targets: target, event, and their ID.
func (f *fixture) mail() (lines []string) {
	f.Helper()
	members, err := f.rdb.ZRange(f.Context(), f.key("mail"), 0, -1).Result()
	if err != nil {
		f.Fatal(err)
	}
	for _, member := range members {
		parts := strings.SplitN(member, "\x00", 4)
		fields := strings.Split(parts[3], us)
		lines = append(lines, parts[0]+" "+fields[1]+" "+fields[0])
	}
	return lines
}

func (f *fixture) wantMail(when string, want ...string) {
	f.Helper()
	if got := f.mail(); !slices.Equal(got, want) {
		f.Errorf("%s: messages %q, want %q", when, got, want)
	}
}

// take takes what may be sent to some targets.
func (f *fixture) take(targets ...string) []ledger.Batch {
	f.Helper()
	batches, next, err := f.TakeMail(f.Context(), targets, 0)
	if err != nil || next != 0 {
		f.Fatalf("take: next %d, %v", next, err)
	}
	return batches
}

// ready makes all messages be ready to be sent now: the pause after the last batch is over, or the
// lease of a worker that took one.
func (f *fixture) ready() {
	f.Helper()
	for _, group := range f.rdb.ZRange(f.Context(), f.key("post"), 0, -1).Val() {
		f.rdb.ZAdd(f.Context(), f.key("post"), redis.Z{Score: 1, Member: group})
	}
}

// runAndFail makes a run of the fixture's job fail, and returns what its end is called.
func (f *fixture) runAndFail(w *locks.Client) string {
	f.Helper()
	a := f.claim(w, f.run(), ledger.ClaimGranted)
	f.finish(a, ledger.OutcomeFailure, ledger.FinishRecorded)
	return fmt.Sprintf("%s.%d", a.Record.ID, a.token())
}

func TestAnEndIsRecordedWithItsMessages(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		w := f.session("w")
		end := f.runAndFail(w)
		f.wantMail("after a failure", "ops failed "+end)
		batches := f.take("ops", "hook")
		if len(batches) != 1 || len(batches[0].Messages) != 1 {
			f.Fatalf("took %+v, want one message", batches)
		}
		m := batches[0].Messages[0]
		if m.ID != end || m.Event != jobs.EventFailed || m.Job != "j" || m.Error != "it said: \"no\"\n" || m.Attempt != 1 ||
			m.Fails != 1 || m.Worker != w.Session() || m.Tick.IsZero() || m.At.IsZero() || m.Started.IsZero() {
			f.Errorf("the message is %+v", m)
		}
		if since := f.now().Sub(batches[0].Taken); since < 0 || since > time.Minute {
			f.Errorf("it was taken %s ago by the clock of the server", since)
		}
		if err := f.MailSent(f.Context(), &batches[0]); err != nil {
			f.Fatal(err)
		}
		f.wantMail("after it was sent")
		f.ready()
		if batches := f.take("ops", "hook"); len(batches) != 0 {
			f.Errorf("took %+v after all were sent", batches)
		}
		if n := f.rdb.ZCard(f.Context(), f.key("post")).Val(); n != 0 {
			f.Errorf("%d targets and jobs are left without messages", n)
		}
	})
}

// A build from before messages writes no mark into the bodies of the requests that it records.
func TestAFailureOfAnUnmarkedRunHasItsMessage(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		w := f.session("w")
		d := f.run()
		body := f.rdb.HGet(f.Context(), f.key("body"), string(d.Run)).Val()
		plain := strings.Replace(body, " \x1f", "\x1f", 1)
		if body == plain {
			f.Fatalf("the body %q has no mark", body)
		}
		if err := f.rdb.HSet(f.Context(), f.key("body"), string(d.Run), plain).Err(); err != nil {
			f.Fatal(err)
		}
		a := f.claim(w, d, ledger.ClaimGranted)
		f.finish(a, ledger.OutcomeFailure, ledger.FinishRecorded)
		f.wantMail("after the failure of an unmarked run", fmt.Sprintf("ops failed %s.%d", a.Record.ID, a.token()))
	})
}

func TestARetryHasNoMessage(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		f.finish(f.claim(f.session("w"), f.run(), ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
		f.wantMail("after a failed attempt that is tried again")
	})
}

func TestOnlyTheFirstSuccessAfterAMessageIsARecovery(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		w := f.session("w")
		succeed := func() string {
			a := f.claim(w, f.run(), ledger.ClaimGranted)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return fmt.Sprintf("%s.%d", a.Record.ID, a.token())
		}
		succeed()
		f.wantMail("after a success without a failure before")
		failed := f.runAndFail(w)
		recovered := succeed()
		want := []string{"ops failed " + failed, "ops recovered " + recovered}
		f.wantMail("after the first success", want...)
		succeed()
		f.wantMail("after the second success", want...)
		if m := f.take("ops")[0].Messages[1]; m.Error != "" {
			f.Errorf("a recovery has the error %q", m.Error)
		}
	})
}

func TestSuccessesThatAreFinishedTogetherRecoverOnce(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		f.job.Overlap, f.job.Every = jobs.OverlapAllow, 0
		w := f.session("w")
		request := func(id string) attempt {
			enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: id, Trigger: ledger.TriggerEnqueue})
			if err != nil {
				f.Fatal(err)
			}
			return f.claim(w, enqueued.Due[0], ledger.ClaimGranted)
		}
		f.finish(request("0"), ledger.OutcomeFailure, ledger.FinishRecorded)
		var finishes []ledger.Finish
		for i := range 3 {
			a := request(fmt.Sprint(i + 1))
			finishes = append(finishes, ledger.Finish{Run: a.Record.ID, Job: f.job, Token: a.token(), Hold: a.request.ID(), Outcome: ledger.OutcomeSuccess})
		}
		for _, finished := range f.FinishAll(f.Context(), finishes) {
			if finished == nil || finished.Verdict != ledger.FinishRecorded {
				f.Errorf("got %+v, want it recorded", finished)
			}
		}
		if got := f.mail(); len(got) != 2 || !strings.HasPrefix(got[1], "ops recovered ") {
			f.Errorf("messages %q, want a failure and one recovery", got)
		}
	})
}

func TestEachKindOfEndHasItsMessage(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		f.job.OnCrash = jobs.CrashAbandon
		w := f.session("w")
		lost := f.claim(w, f.run(), ledger.ClaimGranted)
		f.crash(w)
		end := fmt.Sprintf("%s.%d", lost.Record.ID, lost.token())
		want := []string{"hook lost " + end, "ops lost " + end}
		f.wantMail("after a crash", want...)

		f.job.Name = "late" // its ticks are decided late
		cursor := f.cursor(f.job, 3600)
		missed := f.tick(f.job, cursor, 2, ledger.VerdictMissed)
		if len(missed.Due) != 0 {
			f.Fatalf("missed ticks run: %+v", missed)
		}
		var ids []string
		for i := range 2 {
			ids = append(ids, string(jobs.TickRunID("late", cursor.Add(time.Duration(i+1)*time.Second)))+".n0")
		}
		f.wantMail("after missed ticks", "hook lost "+end, "hook missed "+ids[0], "hook missed "+ids[1],
			"ops lost "+end, "ops missed "+ids[0], "ops missed "+ids[1])
	})
}

// TestAParkedRunHasOneMessage: it has failed when it is parked, and not again when its history can
// be written.
func TestAParkedRunHasOneMessage(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
		hist := f.key("hist:j")
		f.rdb.Del(f.Context(), hist)
		f.rdb.Set(f.Context(), hist, "x", 0)
		if _, _, err := f.Refuse(f.Context(), ledger.Refusal{Run: a.Record.ID, Hold: a.request.ID(), Cause: errors.New("no")}); err != nil {
			f.Fatal(err)
		}
		want := "ops failed " + fmt.Sprintf("%s.%d", a.Record.ID, a.token())
		f.wantMail("parked", want)
		f.rdb.Del(f.Context(), hist)
		f.rdb.ZAdd(f.Context(), f.key("late"), redis.Z{Score: 1, Member: string(a.Record.ID)})
		f.expire()
		f.wantState(a.Record.ID, ledger.StateFailed)
		f.wantMail("in its history", want)
	})
}

func TestABatchKeepsItsMessagesUntilItIsSent(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		w := f.session("w")
		first, second := f.runAndFail(w), f.runAndFail(w)
		batch := f.take("ops")[0]
		if got := f.take("ops"); len(got) != 0 {
			f.Errorf("another worker took %+v, which is being sent", got)
		}
		third := f.runAndFail(w)
		f.ready() // the worker that took it has died
		again := f.take("ops")
		if len(again) != 1 || len(again[0].Messages) != 2 || again[0].Messages[0].ID != first || again[0].Messages[1].ID != second {
			f.Fatalf("the batch is %+v, want it as it was: %+v", again, batch)
		}
		if over, err := f.MailFailed(f.Context(), &again[0], time.Minute, "status 500"); over || err != nil {
			f.Fatalf("a first failure: over %v, %v", over, err)
		}
		if got := f.take("ops"); len(got) != 0 {
			f.Errorf("took %+v before the pause was over", got)
		}
		f.ready()
		again = f.take("ops")
		if len(again) != 1 || len(again[0].Messages) != 2 || again[0].Tries != 1 {
			f.Fatalf("after a failure the batch is %+v", again)
		}
		for range 2 { // the reply was lost
			if err := f.MailSent(f.Context(), &again[0]); err != nil {
				f.Fatal(err)
			}
		}
		f.wantMail("after the batch", "ops failed "+third)
		if got := f.take("ops"); len(got) != 0 {
			f.Errorf("took %+v in the pause after a batch", got)
		}
		f.ready()
		if last := f.take("ops"); len(last) != 1 || last[0].Messages[0].ID != third || last[0].Tries != 0 {
			f.Errorf("then %+v, want the third message", last)
		}
		if sent := f.mailOf("ops"); sent.Sent != 2 || sent.Waiting != 1 || sent.Error != "" {
			f.Errorf("the target has %+v, want 2 messages sent and 1 waiting", sent)
		}
	})
}

// mailOf returns what became of the messages to a target.
func (f *fixture) mailOf(target string) ledger.MailOf {
	f.Helper()
	all, err := f.Mail(f.Context(), nil)
	if err != nil {
		f.Fatal(err)
	}
	named, err := f.Mail(f.Context(), []string{target})
	if err != nil || len(named) == 0 {
		f.Fatalf("%v, %v", named, err)
	}
	for _, one := range all {
		if one.Target == target && one != named[0] {
			f.Errorf("listed as %+v, and by name as %+v", one, named[0])
		}
	}
	return named[0]
}

// age makes the messages that wait as old as this.
func (f *fixture) age(by time.Duration) {
	f.Helper()
	for _, member := range f.rdb.ZRange(f.Context(), f.key("mail"), 0, -1).Val() {
		parts := strings.SplitN(member, "\x00", 4)
		fields := strings.Split(parts[3], us)
		fields[2] = fmt.Sprint(f.now().Add(-by).UnixMilli())
		parts[3] = strings.Join(fields, us)
		f.rdb.ZRem(f.Context(), f.key("mail"), member)
		f.rdb.ZAdd(f.Context(), f.key("mail"), redis.Z{Member: strings.Join(parts, "\x00")})
	}
}

func (f *fixture) audited() string {
	f.Helper()
	var all []string
	for _, entry := range f.rdb.XRange(f.Context(), f.key("audit"), "-", "+").Val() {
		all = append(all, fmt.Sprint(entry.Values["e"]))
	}
	return strings.Join(all, "\n")
}

func TestMessagesThatCannotBeSentForADayAreInTheAudit(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		end := f.runAndFail(f.session("w"))
		f.age(ledger.MailFor - time.Minute)
		batch := f.take("ops")[0]
		if over, err := f.MailFailed(f.Context(), &batch, 0, "status 500"); over || err != nil {
			f.Fatalf("before a day is over: over %v, %v", over, err)
		}
		f.age(ledger.MailFor)
		batch = f.take("ops")[0]
		if over, err := f.MailFailed(f.Context(), &batch, 0, "status 500"); !over || err != nil {
			f.Fatalf("after a day: over %v, %v", over, err)
		}
		f.wantMail("after a day")
		if got := f.audited(); !strings.Contains(got, end) || !strings.Contains(got, "status 500") {
			f.Errorf("the audit has %s", got)
		}
		if got := f.mailOf("ops"); got.Unsent != 1 || got.Error != "status 500" {
			f.Errorf("the target has %+v, want one message that could not be sent", got)
		}
	})
}

func TestMessagesOfATargetThatNoWorkerHasWaitForADay(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		f.runAndFail(f.session("w"))
		if got := f.take("hook"); len(got) != 0 {
			f.Errorf("a worker without the target took %+v", got)
		}
		f.age(ledger.MailFor)
		batches := f.take("hook")
		if len(batches) != 1 || !batches[0].Expired {
			f.Fatalf("after a day %+v, want the message to be abandoned", batches)
		}
		if over, err := f.MailFailed(f.Context(), &batches[0], 0, "no worker has it"); !over || err != nil {
			f.Fatalf("over %v, %v", over, err)
		}
		f.wantMail("abandoned")
	})
}

// TestTargetsThatNoWorkerHasHideNoOthers: a worker looks behind more of them than one call reads.
func TestTargetsThatNoWorkerHasHideNoOthers(t *testing.T) {
	each(t, func(f *fixture) {
		for i := range 250 {
			if err := f.AddMail(f.Context(), fmt.Sprint(i), jobs.EventRefused, "w", "x", []string{fmt.Sprintf("no-%d", i)}); err != nil {
				f.Fatal(err)
			}
		}
		f.nextMillisecond()
		if err := f.AddMail(f.Context(), "it", jobs.EventRefused, "w", "x", []string{"ops"}); err != nil {
			f.Fatal(err)
		}
		after := 0
		for range 10 {
			batches, next, err := f.TakeMail(f.Context(), []string{"ops"}, after)
			if err != nil {
				f.Fatal(err)
			}
			if len(batches) == 1 && batches[0].Messages[0].ID == "it" {
				return
			}
			after = next
		}
		f.Error("the message was not found")
	})
}

func TestMessagesBeyondTheLimitAreCounted(t *testing.T) {
	large(t, func(f *fixture) {
		for i := range 1003 { // more than the limit
			if err := f.AddMail(f.Context(), fmt.Sprint(i), jobs.EventRefused, "w", "x", []string{"ops"}); err != nil {
				f.Fatal(err)
			}
		}
		if got := f.mailOf("ops"); got.Waiting != 1000 || got.Dropped != 3 {
			f.Errorf("the target has %+v, want 1000 that wait and 3 that were dropped", got)
		}
		batch := f.take("ops")[0]
		if len(batch.Messages) != ledger.BatchMost || batch.Dropped != 3 {
			f.Errorf("took %d messages, %d dropped", len(batch.Messages), batch.Dropped)
		}
		if err := f.MailSent(f.Context(), &batch); err != nil {
			f.Fatal(err)
		}
		if got := f.audited(); strings.Count(got, "drop messages") != 1 {
			f.Errorf("the audit has %s", got)
		}
		f.ready()
		if again := f.take("ops")[0]; again.Dropped != 0 {
			f.Errorf("%d are still to go into the audit", again.Dropped)
		}
	})
}

// TestEachDroppedMessageIsInTheAuditOnce: several batches of a target bring the same number along.
func TestEachDroppedMessageIsInTheAuditOnce(t *testing.T) {
	large(t, func(f *fixture) {
		f.told()
		f.runAndFail(f.session("w"))
		add := func(n int) {
			f.Helper()
			for i := range n {
				if err := f.AddMail(f.Context(), fmt.Sprint(i), jobs.EventRefused, "w", "x", []string{"ops"}); err != nil {
					f.Fatal(err)
				}
			}
		}
		wantDropped := func(when string, want int, silent string) {
			f.Helper()
			if got := f.auditedDrops()["ops"]; got != want {
				f.Errorf("%s the audit has %d dropped messages, want %d", when, got, want)
			}
			if got := f.rdb.HGet(f.Context(), f.key("mailed"), "silent:ops").Val(); got != silent {
				f.Errorf("%s it does not have %s, want %s", when, got, silent)
			}
		}
		add(999)
		add(3) // beyond the limit
		batches := f.take("ops")
		if len(batches) != 2 || batches[0].Dropped != 3 || batches[1].Dropped != 3 {
			f.Fatalf("took %d batches, want two with 3 dropped messages each", len(batches))
		}
		if over, err := f.MailFailed(f.Context(), &batches[0], 0, "status 500"); over || err != nil {
			f.Fatalf("over %v, %v", over, err)
		}
		wantDropped("after a failure", 3, "0")
		add(1)
		for i := range batches {
			if err := f.MailSent(f.Context(), &batches[i]); err != nil {
				f.Fatal(err)
			}
		}
		wantDropped("after both batches", 4, "0")
	})
}

// auditedDrops returns how many messages of each target were dropped, as the audit has it.
func (f *fixture) auditedDrops() map[string]int {
	f.Helper()
	acts, err := f.Acts(f.Context(), "", 0)
	if err != nil {
		f.Fatal(err)
	}
	dropped := make(map[string]int)
	for _, act := range acts {
		if act.What == "drop messages" {
			dropped[act.On] += act.Times
		}
	}
	return dropped
}

// An earlier build subtracted the messages of one drop once for each batch.
func TestANegativeNumberOfDroppedMessagesHidesNoLaterOnes(t *testing.T) {
	each(t, func(f *fixture) {
		add := func(dropped int64) ledger.Batch {
			f.Helper()
			err := errors.Join(
				f.AddMail(f.Context(), "it", jobs.EventRefused, "w", "x", []string{"ops"}),
				f.rdb.HIncrBy(f.Context(), f.key("mailed"), "silent:ops", dropped).Err(),
			)
			if err != nil {
				f.Fatal(err)
			}
			f.ready()
			return f.take("ops")[0]
		}
		if batch := add(-57); batch.Dropped != 0 {
			f.Errorf("%d are still to go into the audit, want none", batch.Dropped)
		}
		if batch := add(2); batch.Dropped != 2 {
			f.Errorf("%d are still to go into the audit, want the 2 that were dropped then", batch.Dropped)
		}
	})
}

func TestALongSilenceHasOneMessage(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		f.job.MaxSilence = time.Hour
		f.register(f.job)
		w := f.session("w")
		look := func() time.Duration {
			f.Helper()
			again, err := f.Silences(f.Context(), []*ledger.Encoded{{Job: f.job}})
			if err != nil {
				f.Fatal(err)
			}
			return again[0]
		}
		silent := func(by time.Duration, kind string) string {
			at := f.now().Add(-by).UnixMilli()
			f.rdb.HSet(f.Context(), f.key("facts"), "gj", fmt.Sprint(kind, at))
			return fmt.Sprintf("ops late j.late.%d", at)
		}
		silent(59*time.Minute, "r")
		if again := look(); again > time.Minute+time.Second || again < 50*time.Second {
			f.Errorf("it is looked at again in %s, want about a minute", again)
		}
		f.wantMail("before its time")
		late := silent(61*time.Minute, "r")
		for range 2 {
			look()
			f.wantMail("late", late)
		}
		if m := f.take("ops")[0].Messages[0]; !m.Never || m.Silent.IsZero() {
			f.Errorf("the message is %+v", m)
		}
		a := f.claim(w, f.run(), ledger.ClaimGranted)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		recovered := fmt.Sprintf("ops recovered %s.%d", a.Record.ID, a.token())
		f.wantMail("recovered", late, recovered)
		look()
		f.wantMail("in time again", late, recovered)
		second := silent(2*time.Hour, "s")
		look()
		f.wantMail("late again", late, recovered, second)
	})
}

// TestOlderBuildsReadTheArgsOfMarkedRuns: the mark is a blank, which JSON may have there.
func TestOlderBuildsReadTheArgsOfMarkedRuns(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		f.job.Args = []byte(`{"a": "${x}"}`)
		enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "1", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		body := f.rdb.HGet(f.Context(), f.key("body"), string(enqueued.Run)).Val()
		if args, _, _ := strings.Cut(body, us); args != ` {"a":"${x}"} ` {
			f.Errorf("the body has %q", args)
		}
		if r := f.find(enqueued.Run); string(r.Args) != `{"a":"${x}"}` || !r.Templated {
			f.Errorf("the record has %q", r.Args)
		}
		a := f.claim(f.session("w"), enqueued.Due[0], ledger.ClaimGranted)
		if string(a.Args) != `{"a":"${x}"}` {
			f.Errorf("the claim has %q", a.Args)
		}
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		if r := f.find(enqueued.Run); string(r.Args) != `{"a":"${x}"}` || !r.Templated {
			f.Errorf("the final record has %q", r.Args)
		}
	})
}

func TestAMessageThatCannotBeReadKeepsNoOtherFromBeingSent(t *testing.T) {
	each(t, func(f *fixture) {
		f.rdb.ZAdd(f.Context(), f.key("mail"), redis.Z{Member: "ops\x00j\x000000000000000001\x00rubbish"})
		f.rdb.ZAdd(f.Context(), f.key("post"), redis.Z{Score: 1, Member: "ops\x00j"})
		if err := f.AddMail(f.Context(), "it", jobs.EventRefused, "w", "x", []string{"ops"}); err != nil {
			f.Fatal(err)
		}
		batches := f.take("ops")
		if len(batches) != 2 {
			f.Fatalf("took %+v, want both", batches)
		}
		for _, batch := range batches {
			if _, err := f.MailFailed(f.Context(), &batch, 0, "x"); err != nil {
				f.Error(err)
			}
		}
	})
}

// TestDamagedMailKeepsNoRunFromItsEnd: another client has written these keys.
func TestDamagedMailKeepsNoRunFromItsEnd(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		w := f.session("w")
		for _, key := range []string{"mail", "post", "mailed"} {
			f.rdb.Del(f.Context(), f.key(key))
			f.rdb.Set(f.Context(), f.key(key), "x", 0)
			f.runAndFail(w)
			f.rdb.Del(f.Context(), f.key(key))
		}
	})
}
