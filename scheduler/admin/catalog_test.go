package admin

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// manyJobs returns a fleet with 10 steps of jobs, of which each takes 40 ms.
func manyJobs() *fakes.Fake {
	f := fakes.Fleet()
	f.Registered, f.JobsTake = nil, 40*time.Millisecond
	for i := range 10 * catalogStep {
		f.Registered = append(f.Registered, ledger.JobRecord{
			Job: &jobs.Job{Name: fmt.Sprintf("job-%05d", i), Every: time.Minute}, Hash: "h", Cursor: fakes.Noon,
		})
	}
	return f
}

// wantKnown fails the test unless a reader knows this many jobs within a time, of which 40 ms are
// for the job that it shows; or none, for want 0.
func wantKnown(t *testing.T, when string, r *Reader, want int, within time.Duration) {
	t.Helper()
	began := time.Now()
	page, _, known, err := r.JobPage(t.Context(), Filter{Limit: 1}, "", "")
	switch {
	case want == 0 && !errors.Is(err, ErrReading):
		t.Errorf("%s: %v, want that the jobs are being read", when, err)
	case want > 0 && (err != nil || known != want || len(page) != 1):
		t.Errorf("%s: %d of %d jobs, %v, want one of %d", when, len(page), known, err, want)
	}
	if took := time.Since(began); took > within {
		t.Errorf("%s: it took %v, want at most %v", when, took, within)
	}
}

// TestAHastyReaderDoesNotWaitForAllJobs: its requests continue the reading, and later ones do not
// wait for the next reading either.
func TestAHastyReaderDoesNotWaitForAllJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := manyJobs()
		r := readerOf(f)
		hasty := r.Hasty(100 * time.Millisecond)
		for i := range 3 {
			var reading *ReadingError
			_, err := hasty.Drifted(t.Context(), 1)
			if read := 1500 * (i + 1); !errors.As(err, &reading) || reading.Read != read || reading.All != 5000 {
				t.Errorf("request %d: %v, want %d of 5000 jobs", i+1, err, read)
			}
		}
		wantKnown(t, "the last step", hasty, 5000, 80*time.Millisecond)

		before := f.ReadCount.Load()
		time.Sleep(catalogFactor*400*time.Millisecond - 41*time.Millisecond)
		if _, err := hasty.Drifted(t.Context(), 1); err != nil || f.ReadCount.Load() > before+2 {
			t.Errorf("%d reads, %v: the jobs were read again too early", f.ReadCount.Load()-before, err)
		}
		f.Registered = f.Registered[:4000]
		time.Sleep(2 * time.Millisecond)
		wantKnown(t, "while they are read again", hasty, 5000, 160*time.Millisecond)
		wantKnown(t, "to the end", r, 4000, 360*time.Millisecond)
		time.Sleep(catalogOld)
		wantKnown(t, "after a long time without readers", hasty, 0, 120*time.Millisecond)
	})
}

// TestReadersShareAReadingOfAllJobs: those that wait get what one of them has read.
func TestReadersShareAReadingOfAllJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := manyJobs()
		r := readerOf(f)
		var readers sync.WaitGroup
		for i := range 20 {
			readers.Go(func() { wantKnown(t, fmt.Sprint("reader ", i), r, 5000, 440*time.Millisecond) })
		}
		readers.Wait()
		if n := f.ReadCount.Load(); n > 12+20*12 {
			t.Errorf("20 readers read %d times", n)
		}
	})
}

// TestFewJobsAreReadForEachAnswer: what was changed just now is in the next answer.
func TestFewJobsAreReadForEachAnswer(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	r := readerOf(f)
	for _, paused := range []string{"", "by ann: later", ""} {
		f.Registered[0].Paused = paused
		if all, err := r.Jobs(t.Context(), Filter{Job: f.Registered[0].Job.Name}, ""); err != nil || string(all[0].Paused) != paused {
			t.Errorf("got %+v, %v, want a job that is paused %q", all, err, paused)
		}
	}
}

// TestAReadingOfAllJobsContinuesAfterAnOutage: an error ends the answer, and not the reading.
func TestAReadingOfAllJobsContinuesAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := manyJobs()
		r := readerOf(f)
		wantKnown(t, "before", r.Hasty(100*time.Millisecond), 0, 120*time.Millisecond)
		f.Fail("connection refused")
		if _, err := r.Drifted(t.Context(), 1); err == nil || errors.Is(err, ErrReading) {
			t.Errorf("in an outage: %v", err)
		}
		f.Recover()
		wantKnown(t, "after it", r, 5000, 8*40*time.Millisecond)
	})
}

// TestSparseRequestsCompleteAReading: however slowly a person loads the page again.
func TestSparseRequestsCompleteAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := manyJobs()
		hasty := readerOf(f).Hasty(time.Millisecond) // a step for each request
		for range 9 {
			wantKnown(t, "one step", hasty, 0, 40*time.Millisecond)
			time.Sleep(50 * time.Second)
		}
		wantKnown(t, "the last step", hasty, 5000, 80*time.Millisecond)
	})
}

// TestAReadingOfAllJobsMayTakeLong: over a slow connection, a reader that waits gets its answer.
func TestAReadingOfAllJobsMayTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := manyJobs()
		f.JobsTake = 30 * time.Second
		r := readerOf(f)
		var readers sync.WaitGroup
		for i := range 2 {
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Second)
				wantKnown(t, fmt.Sprint("reader ", i), r, 5000, 20*time.Minute)
			})
		}
		readers.Wait()
	})
}

// TestAListedJobIsShownAsItIsNow although the listing is some seconds old, and is late only if it
// was so when it was read.
func TestAListedJobIsShownAsItIsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := manyJobs()
		f.Registered[7].Job.MaxSilence = time.Minute
		f.Registered[7].Silent = fakes.Noon
		r := readerOf(f)
		find := func() Job {
			t.Helper()
			page, _, _, err := r.JobPage(t.Context(), Filter{Job: "job-00007", Limit: 5}, "", "")
			if err != nil || len(page) != 1 {
				t.Fatalf("%+v, %v, want one job", page, err)
			}
			return page[0]
		}
		find()
		f.Registered[7].Paused = "by ann: later"
		if job := find(); job.Paused != "by ann: later" || job.Late {
			t.Errorf("got %+v, want it paused, and not late", job)
		}
		f.Registered = append(f.Registered[:7], f.Registered[8:]...)
		if page, _, _, err := r.JobPage(t.Context(), Filter{Limit: 8}, "", "job-00004"); err != nil || len(page) != 7 || page[2].Name != "job-00008" {
			t.Errorf("got %+v, %v, want seven jobs, without the removed one", page, err)
		}
	})
}

// TestAnUnknownStateIsRefusedWithoutJobs as it is beside some.
func TestAnUnknownStateIsRefusedWithoutJobs(t *testing.T) {
	t.Parallel()
	for _, f := range []*fakes.Fake{new(fakes.Fake), fakes.Fleet()} {
		if _, err := readerOf(f).Jobs(t.Context(), Filter{State: "bogus"}, ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v, want it refused", err)
		}
	}
}

// TestTheNextTickOfAListedJobIsComputedOnce, and again when its cursor or its definition changes.
func TestTheNextTickOfAListedJobIsComputedOnce(t *testing.T) {
	t.Parallel()
	hourly := ledger.JobRecord{Job: &jobs.Job{Name: "a", Every: time.Hour}, Cursor: fakes.Noon}
	first := newListed(hourly, fakes.Noon.Add(time.Minute), nil)
	later := hourly
	later.Cursor = fakes.Noon.Add(time.Hour)
	daily := hourly
	daily.Job = &jobs.Job{Name: "a", Schedule: "0 3 * * *", Timezone: "UTC"}
	once := hourly
	once.Job = &jobs.Job{Name: "a"}
	for _, test := range []struct {
		name   string
		record ledger.JobRecord
		after  time.Duration
		want   time.Duration // zero: none
	}{
		{"the same", hourly, 10 * time.Minute, time.Hour},
		{"before it was listed", hourly, 0, time.Hour},
		{"at the next tick", hourly, time.Hour, 2 * time.Hour},
		{"a later cursor", later, time.Hour, 2 * time.Hour},
		{"another trigger", daily, time.Hour, 15 * time.Hour},
		{"no trigger", once, time.Hour, 0},
	} {
		job := newListed(test.record, fakes.Noon.Add(2*time.Minute), &first)
		got := job.after(fakes.Noon.Add(test.after))
		if want := fakes.Noon.Add(test.want); test.want == 0 && !got.IsZero() || test.want != 0 && !got.Equal(want) {
			t.Errorf("%s: got %v, want %v", test.name, got, want)
		}
	}
	if again := newListed(hourly, fakes.Noon.Add(time.Minute), &first); again.trigger != first.trigger {
		t.Error("the trigger of an unchanged definition was computed again")
	}
}
