package ledger_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TestDueRunsAreCountedByQueue: the number of runs in front of a run is known, and the oldest of
// each queue are found.
func TestDueRunsAreCountedByQueue(t *testing.T) {
	each(t, func(f *fixture) {
		for _, queue := range []string{"b", "a", "ab"} {
			for i := range 3 {
				job := newJob("j")
				job.Queue, job.Handler, job.Command = queue, "h", nil
				request := ledger.Request{Job: job, ID: fmt.Sprintf("%s%d", queue, i), Trigger: ledger.TriggerEnqueue}
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
			if queue.Due != 3 || len(queue.Oldest) != 2 || queue.Oldest[0].ID != jobs.RunID("j#"+queue.Name+"0") || queue.Oldest[0].State != ledger.StateDue {
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

// TestARunThatSurvivesAnAttemptIsASuspectNoMore: it may fail after its crash. An attempt that was
// handed back, or lost its lease, counts only if it was longer than the one that crashed.
func TestARunThatSurvivesAnAttemptIsASuspectNoMore(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.MaxCrashes = 10
		a, b := f.session("a"), f.session("b")
		due := f.run()
		f.claim(a, due, ledger.ClaimGranted)
		wants := func(due ledger.Due, crashes int, suspected bool) {
			f.Helper()
			if record := f.find(due.Run); record.Suspect() != suspected {
				f.Errorf("the record says suspect: %v, want %v: %+v", record.Suspect(), suspected, record)
			}
			request := f.request(b)
			claimed, err := f.ClaimSound(f.Context(), request, due, 0, nil)
			if err != nil || claimed.Outcome != ledger.ClaimCrashed || claimed.Crashes != crashes || claimed.Suspected != suspected {
				f.Fatalf("claim: %+v, %v, want %d crashes, a suspect: %v", claimed, err, crashes, suspected)
			}
			request.Drop()
		}
		longer := func() { // the attempt that was closed last
			f.Helper()
			log, err := f.rdb.HGet(f.Context(), f.key("log"), string(due.Run)).Result()
			if err != nil {
				f.Fatal(err)
			}
			at := strings.LastIndex(log, `"started_at":`)
			log = log[:at] + regexp.MustCompile(`^"started_at":\d+`).ReplaceAllString(log[at:], `"started_at":1000000000000`)
			if err := f.rdb.HSet(f.Context(), f.key("log"), string(due.Run), log).Err(); err != nil {
				f.Fatal(err)
			}
		}
		again := f.crash(a)[0]
		wants(again, 1, true)
		f.finish(f.claim(b, again, ledger.ClaimGranted), ledger.OutcomeHandBack, ledger.FinishRecorded)
		again = f.await()[0]
		wants(again, 1, true)
		f.finish(f.claim(b, again, ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
		again = f.await()[0]
		wants(again, 1, false)

		for crashes, end := range []func() ledger.Due{
			2: func() ledger.Due { // it has crashed twice, and survives just the same
				f.finish(f.claim(b, again, ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
				return f.await()[0]
			},
			3: func() ledger.Due {
				f.finish(f.claim(b, again, ledger.ClaimGranted), ledger.OutcomeHandBack, ledger.FinishRecorded)
				longer()
				return f.await()[0]
			},
			4: func() ledger.Due {
				lost := f.session("lost")
				f.claim(lost, again, ledger.ClaimGranted)
				due := f.loseLease(lost)[0]
				wants(due, 4, true)
				longer()
				return due
			},
		} {
			if end == nil {
				continue
			}
			dying := f.session("dying")
			f.claim(dying, again, ledger.ClaimGranted)
			again = f.crash(dying)[0]
			wants(again, crashes, true)
			again = end()
			wants(again, crashes, false)
		}
	})
}
