package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

func (f *fixture) follow(run jobs.RunID, last int64) *ledger.Followed {
	f.Helper()
	followed, err := f.Follow(f.Context(), run, last)
	if err != nil {
		f.Fatal(err)
	}
	return followed
}

// passes passes on texts of an attempt that follow each other, and returns the error. Those from 0
// on are the tail that its worker has kept.
func (f *fixture) passes(a attempt, from int64, end bool, texts ...string) error {
	f.Helper()
	p := ledger.Passing{Run: a.Record.ID, Token: a.token(), Attempt: a.Record.Last().Number, First: from == 0}
	for i, text := range texts {
		upto := from + int64(len(text))
		p.Printed = append(p.Printed, ledger.Printed{From: from, Upto: upto, End: end && i == len(texts)-1, Text: text})
		from = upto
	}
	return f.PassOn(f.Context(), []ledger.Passing{p})[0]
}

// textOf joins what was passed on.
func textOf(printed []ledger.Printed) string {
	var b strings.Builder
	for _, p := range printed {
		b.WriteString(p.Text)
	}
	return b.String()
}

func TestOutputIsPassedOnWhileAClientFollows(t *testing.T) {
	each(t, func(f *fixture) {
		client, due := f.session("w"), f.run()
		if followed := f.follow(due.Run, 0); followed.State != ledger.StateDue || followed.Attempt != 0 || followed.Worker != "" {
			f.Errorf("before its start: %+v", followed)
		}
		a := f.claim(client, due, ledger.ClaimGranted)
		live := f.key("live:" + string(due.Run))
		if err := f.passes(a, 0, false, "x"); !errors.Is(err, ledger.ErrNotFollowed) || f.rdb.Exists(f.Context(), live).Val() != 0 {
			f.Errorf("without a client: %v, want ErrNotFollowed, and no key", err)
		}
		first := f.follow(due.Run, 0)
		if first.State != ledger.StateRunning || first.Attempt != 1 || first.Worker != client.Session() || first.Passing || len(first.Printed) != 0 {
			f.Errorf("it runs: %+v", first)
		}
		if ttl := f.rdb.TTL(f.Context(), live).Val(); ttl <= 0 || ttl > 15*time.Second {
			f.Errorf("its key lives for %s, want some seconds", ttl)
		}
		if err := f.passes(a, 0, false); err != nil || !f.follow(due.Run, 0).Passing {
			f.Errorf("an empty call: %v, want the client to see that output is passed on", err)
		}
		if err := f.passes(a, 0, false, "one\n", "\x1ftwo\x00"); err != nil {
			f.Error(err)
		}
		second := f.follow(due.Run, first.Last)
		if got := textOf(second.Printed); got != "one\n\x1ftwo\x00" || second.Printed[1].From != 4 || second.Printed[1].Upto != 9 || second.Printed[1].Attempt != 1 {
			f.Errorf("got %+v", second)
		}
		if err := f.passes(a, 9, true, "three"); err != nil {
			f.Error(err)
		}
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		third := f.follow(due.Run, second.Last)
		if third.State != ledger.StateSucceeded || textOf(third.Printed) != "three" || !third.Printed[0].End {
			f.Errorf("after its end: %+v", third)
		}
		if other := f.follow(due.Run, 0); textOf(other.Printed) != "one\n\x1ftwo\x00three" {
			f.Errorf("another client gets %+v", other)
		}
		if again := f.follow(due.Run, third.Last); len(again.Printed) != 0 || again.Last != third.Last {
			f.Errorf("there is nothing new, but it gets %+v", again)
		}
		if _, err := f.Follow(f.Context(), "j#none", 0); !errors.Is(err, ledger.ErrUnknown) {
			f.Errorf("a run that does not exist: %v", err)
		}
	})
}

func TestOnlyTheLastPartsOfTheLastAttemptAreKept(t *testing.T) {
	each(t, func(f *fixture) {
		client, due := f.session("w"), f.run()
		old := f.claim(client, due, ledger.ClaimGranted)
		f.follow(due.Run, 0)
		last := int64(0)
		for i := range 100 {
			if err := f.passes(old, int64(10*i), false, fmt.Sprintf("%09d\n", i)); err != nil {
				f.Fatal(err)
			}
			if i == 0 {
				last = f.follow(due.Run, 0).Last
			}
		}
		followed := f.follow(due.Run, last)
		if n := len(followed.Printed); n != 32 || followed.Printed[0].Text != "000000068\n" || followed.Printed[31].Text != "000000099\n" {
			f.Errorf("%d parts are kept, %+v; want the last 32", n, followed.Printed)
		}
		due = f.prints(old, ledger.OutcomeHandBack, "")[0]
		next := f.claim(client, due, ledger.ClaimGranted)
		if followed = f.follow(due.Run, followed.Last); followed.Passing || followed.Attempt != 2 {
			f.Errorf("the next attempt passes nothing on yet: %+v", followed)
		}
		if err := f.passes(next, 0, false, "new"); err != nil {
			f.Error(err)
		}
		if err := f.passes(old, 1000, false, "old"); !errors.Is(err, ledger.ErrNotFollowed) {
			f.Errorf("the attempt before: %v, want it refused", err)
		}
		if followed = f.follow(due.Run, followed.Last); !followed.Passing || textOf(followed.Printed) != "new" || followed.Printed[0].Attempt != 2 {
			f.Errorf("of the next attempt: %+v", followed)
		}
	})
}

func TestANewClientReadsFromTheTailOn(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
		run := a.Record.ID
		first := f.follow(run, 0)
		for i := range 32 {
			if err := f.passes(a, int64(i), false, "x"); err != nil {
				f.Fatal(err)
			}
		}
		if second := f.follow(run, 0); len(second.Printed) != 32 || !second.Passing {
			f.Errorf("got %+v, want all entries, which are still kept", second)
		}
		if err := f.passes(a, 32, false, "y"); err != nil {
			f.Fatal(err)
		}
		third := f.follow(run, 0)
		for _, c := range []*ledger.Followed{third, f.follow(run, 0)} {
			if len(c.Printed) != 0 || c.Passing {
				f.Errorf("got %+v, want nothing before the tail", c)
			}
		}
		if err := f.passes(a, 33, false, "z"); !errors.Is(err, ledger.ErrFromTail) {
			f.Errorf("its worker continues: %v, want that it begins anew", err)
		}
		if err := f.passes(a, 0, false, strings.Repeat("x", 32)+"y", "z"); err != nil {
			f.Fatal(err)
		}
		fourth := f.follow(run, 0)
		for name, c := range map[string]*ledger.Followed{"the third client": f.follow(run, third.Last), "a fourth one": fourth} {
			if got := textOf(c.Printed); got != strings.Repeat("x", 32)+"yz" || !c.Passing {
				f.Errorf("%s gets %+v", name, c)
			}
		}
		if first = f.follow(run, first.Last); !first.Passing {
			f.Errorf("the first client gets %+v", first)
		}
	})
}

func TestAClientThatNoLongerFollowsIsForgotten(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
		followed := f.follow(a.Record.ID, 0)
		if err := f.passes(a, 0, false, "one"); err != nil {
			f.Fatal(err)
		}
		live := f.key("live:" + string(a.Record.ID))
		if err := f.rdb.HSet(f.Context(), live, "until", f.now().UnixMilli()-1).Err(); err != nil {
			f.Fatal(err)
		}
		if err := f.passes(a, 3, false, "two"); !errors.Is(err, ledger.ErrNotFollowed) || f.rdb.Exists(f.Context(), live).Val() != 0 {
			f.Errorf("%v, want ErrNotFollowed, and no key", err)
		}
		// One that comes back reads what is passed on anew, whatever it had read before.
		f.follow(a.Record.ID, followed.Last)
		if err := f.passes(a, 0, false, "onetwo"); err != nil {
			f.Fatal(err)
		}
		if again := f.follow(a.Record.ID, followed.Last); textOf(again.Printed) != "onetwo" {
			f.Errorf("got %+v", again)
		}
	})
}

// TestAWorkerIsAskedOnceForManyClients counts the notices to the session of a run.
func TestAWorkerIsAskedOnceForManyClients(t *testing.T) {
	each(t, func(f *fixture) {
		client, due := f.session("w"), f.run()
		messages := f.rdb.Subscribe(f.Context(), f.key("to:"+string(client.Session())))
		defer messages.Close()
		if _, err := messages.Receive(f.Context()); err != nil {
			f.Fatal(err)
		}
		a := f.claim(client, due, ledger.ClaimGranted)
		began := time.Now()
		for range 20 {
			f.follow(due.Run, 0)
		}
		if err := f.passes(a, 0, false); err != nil {
			f.Fatal(err)
		}
		for range 20 {
			f.follow(due.Run, 0)
		}
		if err := f.rdb.Publish(f.Context(), f.key("to:"+string(client.Session())), "end").Err(); err != nil {
			f.Fatal(err)
		}
		asked := 0
		for {
			message, err := messages.ReceiveMessage(f.Context())
			if err != nil {
				f.Fatal(err)
			}
			if message.Payload == "end" {
				break
			}
			if message.Payload == "n\x1f"+ledger.NoticeOutput+string(due.Run) {
				asked++
			}
		}
		// again when half a second has passed
		if asked < 1 || asked > 2+int(time.Since(began)/(500*time.Millisecond)) {
			f.Errorf("its worker was asked %d times, want once", asked)
		}
	})
}

// TestAClientWithoutRightsFollowsWhatOthersAskFor has the rights of a reader: it may not write.
func TestAClientWithoutRightsFollowsWhatOthersAskFor(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb, namespace := server.Client(t), redistest.Namespace(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j")}
	a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
	if err := rdb.Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@all", "-hset").Err(); err != nil {
		t.Fatal(err)
	}
	options := server.RedisOptions()
	options.Username, options.Password = "reader", "secret"
	other := redis.NewClient(options)
	defer other.Close()
	reader := ledger.New(other, space)
	followed, err := reader.Follow(t.Context(), a.Record.ID, 0)
	if err != nil || followed.State != ledger.StateRunning || followed.Refused == "" {
		t.Errorf("%+v, %v; want the run, and why its worker was not asked", followed, err)
	}
	f.follow(a.Record.ID, 0)
	if err := f.passes(a, 0, false, "one"); err != nil {
		t.Fatal(err)
	}
	if followed, err = reader.Follow(t.Context(), a.Record.ID, 0); err != nil || !followed.Passing || textOf(followed.Printed) != "one" {
		t.Errorf("%+v, %v; want what another client has asked for", followed, err)
	}
}
