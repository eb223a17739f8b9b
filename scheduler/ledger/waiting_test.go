package ledger_test

import (
	"fmt"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TestDueRunsAreCountedByQueue: a run knows how many are in front of it, and the oldest of each queue are found.
func TestDueRunsAreCountedByQueue(t *testing.T) {
	each(t, func(f *fixture) {
		for _, queue := range []string{"b", "a", "ab"} {
			for i := range 3 {
				job := newJob("j")
				job.Queue, job.Handler, job.Command = queue, "h", nil
				request := ledger.Request{Job: job, ID: fmt.Sprintf("%s%d", queue, i), Trigger: ledger.ByRequest}
				if _, err := f.Enqueue(f.Context(), request); err != nil {
					f.Fatal(err)
				}
			}
		}
		queues, err := f.DueQueues(f.Context(), 2, 2)
		if err != nil || len(queues) != 2 || queues[0].Name != "a" || queues[1].Name != "ab" {
			f.Fatalf("got %+v, %v, want the queues a and ab", queues, err)
		}
		for _, queue := range queues {
			if queue.Due != 3 || len(queue.Oldest) != 2 || queue.Oldest[0].ID != jobs.RunID("j#"+queue.Name+"0") || queue.Oldest[0].State != ledger.DueNow {
				f.Errorf("got %+v, want 3 due runs, the oldest two of them", queue)
			}
		}
		for i := range 3 {
			record, _, err := f.Find(f.Context(), jobs.RunID(fmt.Sprintf("j#a%d", i)))
			if err != nil {
				f.Fatal(err)
			}
			if ahead, err := f.Ahead(f.Context(), record); err != nil || ahead != i {
				f.Errorf("%s: %d are ahead, %v, want %d", record.ID, ahead, err, i)
			}
		}
	})
}

// TestARunThatSurvivesAnAttemptIsASuspectNoMore: it may fail after its crash, and is then claimed like any other. An attempt
// that was handed back does not count.
func TestARunThatSurvivesAnAttemptIsASuspectNoMore(t *testing.T) {
	each(t, func(f *fixture) {
		a, b := f.session("a"), f.session("b")
		due := f.run()
		f.claim(a, due, ledger.Granted)
		wants := func(due ledger.Due, want ledger.ClaimOutcome) attempt {
			f.Helper()
			if record := f.find(due.Run); record.Suspect() != (want == ledger.Suspect) {
				f.Errorf("the record says suspect: %v, want a claim that is %s: %+v", record.Suspect(), want, record)
			}
			request := f.request(b)
			claimed, err := f.ClaimSound(f.Context(), request, due, 0, nil)
			if err != nil || claimed.Outcome != want {
				f.Fatalf("claim: %+v, %v, want %s", claimed, err, want)
			}
			return attempt{Claimed: claimed, request: request, client: b}
		}
		again := f.crash(a)[0]
		wants(again, ledger.Suspect)
		f.finish(f.claim(b, again, ledger.Granted), ledger.HandBack, ledger.Recorded)
		again = f.await()[0]
		wants(again, ledger.Suspect)
		f.finish(f.claim(b, again, ledger.Granted), ledger.Again, ledger.Recorded)
		sound := wants(f.await()[0], ledger.Granted)
		if sound.Record.Crashes != 1 {
			f.Errorf("%d crashes, want the one still counted", sound.Record.Crashes)
		}
		b = f.session("c")
		again = f.crash(sound.client)[0]
		wants(again, ledger.Suspect) // it has crashed anew
		f.finish(f.claim(b, again, ledger.Granted), ledger.Again, ledger.Recorded)
		wants(f.await()[0], ledger.Suspect) // after two crashes it stays one
	})
}
