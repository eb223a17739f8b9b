package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// failed ends an attempt as failed, and returns what that end is called.
func (w *worker) failed(due ledger.Due) string {
	w.Helper()
	a := w.claim(w.client, due, ledger.ClaimGranted)
	w.finish(a, ledger.OutcomeFailure, ledger.FinishRecorded)
	return fmt.Sprintf("%s.%d", a.Record.ID, a.token())
}

// TestAfterALossOfDataEndsHaveTheirMessagesAgain: those that a live worker has recorded, under the
// same names, whether they were sent or not. An end that a dead worker had recorded has none.
func TestAfterALossOfDataEndsHaveTheirMessagesAgain(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		f.job.Overlap = jobs.OverlapAllow
		a, b := f.worker("a"), f.worker("b")
		due := a.ticks(3, b)
		sent := a.failed(due[0])
		batch := f.take("ops")[0]
		if err := f.MailSent(f.Context(), &batch); err != nil {
			f.Fatal(err)
		}
		waits, dead := a.failed(due[1]), b.failed(due[2])
		f.wantMail("before the loss", "ops failed "+waits, "ops failed "+dead)
		a.hear()

		f.lose(a)
		f.wantMail("after it")
		for range 2 { // the second one changes nothing
			a.say()
			got := f.mail()
			slices.Sort(got)
			if want := []string{"ops failed " + sent, "ops failed " + waits}; !slices.Equal(got, want) {
				t.Errorf("re-asserted messages are %q, want %q", got, want)
			}
		}
		f.wantState(due[2].Run, ledger.StateFailed) // a has heard of it
		f.goOn()
		if batches := f.take("ops"); len(batches) != 1 || len(batches[0].Messages) != 2 {
			t.Errorf("took %+v, want both", batches)
		}
	})
}

// TestAnEndThatWasHeardOfMayHaveASecondName: Redis goes back to a time at which the run was due. A
// worker that has heard of its end re-asserts that before the worker that recorded it does.
func TestAnEndThatWasHeardOfMayHaveASecondName(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		a, b := f.worker("a"), f.worker("b")
		due := a.ticks(1, b)
		f.mark()
		end := b.failed(due[0])
		a.hear()
		f.rewind(a, b)
		f.wantMail("after the loss")
		a.say()
		got := f.mail()
		if len(got) != 1 || !strings.HasPrefix(got[0], fmt.Sprintf("ops failed %s.n", due[0].Run)) {
			t.Errorf("heard of: messages %q, want one that names no attempt", got)
		}
		b.say()
		f.wantMail("by both", append(got, "ops failed "+end)...)
		if got := f.wantState(due[0].Run, ledger.StateFailed); len(got.Attempts) != 1 {
			t.Errorf("%+v, want its attempt", got)
		}
	})
}

// TestABatchThatWasSentIsSentAgainAfterItsRecordWasLost: a failover loses the record, and a sender
// of that time cannot end a later batch.
func TestABatchThatWasSentIsSentAgainAfterItsRecordWasLost(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		w := f.session("w")
		end := f.runAndFail(w)
		f.mark()
		batch := f.take("ops")[0]
		if err := f.MailSent(f.Context(), &batch); err != nil {
			f.Fatal(err)
		}
		f.rewind()
		f.goOn()
		f.wantMail("after the loss", "ops failed "+end)
		again := f.take("ops")
		if len(again) != 1 || again[0].Messages[0].ID != end {
			f.Fatalf("took %+v, want %s once more", again, end)
		}
		// the same batch, by its first sender
		if err := f.MailSent(f.Context(), &batch); err != nil {
			f.Fatal(err)
		}
		f.wantMail("after its first sender has recorded it")
		if err := f.MailSent(f.Context(), &again[0]); err != nil {
			f.Fatal(err)
		}
		if got := f.mailOf("ops"); got.Sent != 1 {
			t.Errorf("%d messages count as sent, want one", got.Sent)
		}
	})
}

// TestEndsByAnOlderBuildHaveNoMessages: such a build makes runs without the mark, and its scripts
// store no messages. Later ends have theirs.
func TestEndsByAnOlderBuildHaveNoMessages(t *testing.T) {
	each(t, func(f *fixture) {
		f.told()
		w := f.session("w")
		if strings.HasSuffix(f.Name(), "miniredis") {
			return // the rest plants the scripts of an older build in a client of the same server
		}
		options := *redistest.Client(f.T).Options()
		rdb := redis.NewClient(&options)
		f.Cleanup(func() {
			if err := rdb.Close(); err != nil {
				f.Error(err)
			}
		})
		const tells = "if definition then\n    local event"
		planted := false
		rdb.AddHook(sourceHook{func(source string) string {
			planted = planted || strings.Contains(source, tells)
			return strings.Replace(source, tells, "if false then\n    local event", 1)
		}})
		older := *f
		older.rdb, older.Ledger = rdb, ledger.New(rdb, f.Space())
		if end := older.runAndFail(w); !planted {
			f.Fatalf("%s ended by a script that stores messages", end)
		}
		f.wantMail("of a run that an older build has ended")
		end := f.runAndFail(w)
		f.wantMail("of a run without one", "ops failed "+end)
		f.wantNothingLeft()
	})
}
