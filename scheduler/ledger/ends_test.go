package ledger_test

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// indexes completes the order of ended jobs, as the worker on duty does.
func (f *fixture) indexes() {
	f.Helper()
	size, err := f.HistorySize(f.Context(), without)
	if err != nil {
		f.Fatal(err)
	}
	if err := f.IndexEnds(f.Context(), size, without); err != nil {
		f.Fatal(err)
	}
}

// endedJobs returns one page of the ended jobs, and the place of the next one.
func (f *fixture) endedJobs(place string, most int) (page []ledger.EndedJob, names, next string) {
	f.Helper()
	page, next, err := f.EndedJobs(f.Context(), place, most)
	if err != nil {
		f.Fatal(err)
	}
	list := make([]string, len(page))
	for i, job := range page {
		list[i] = job.Job
	}
	return page, strings.Join(list, " "), next
}

// wantEnded walks through all ended jobs.
func (f *fixture) wantEnded(when string, most int, want string) {
	f.Helper()
	var all []string
	for place, pages := "", 0; ; pages++ {
		page, _, next := f.endedJobs(place, most)
		for _, job := range page {
			history, err := f.EndedEntries(f.Context(), []ledger.EndedPage{{Job: job.Job, Most: 1}})
			if err != nil || len(history[0]) == 0 || !history[0][0].At.Equal(job.At) {
				f.Errorf("%s: the last end of %s is %v, want %v: %v", when, job.Job, job.At, history, err)
			}
			if !slices.Contains(all, job.Job) {
				all = append(all, job.Job)
			}
		}
		if place = next; place == "" {
			break
		}
		if pages > 100 {
			f.Fatalf("%s: the walk does not end", when)
		}
	}
	if got := strings.Join(all, " "); got != want {
		f.Errorf("%s: got %q, want %q", when, got, want)
	}
}

// TestJobsAreInTheOrderOfTheirLastEnds in whatever way the runs ended: by each script that ends
// runs, and by a build that does not keep the order.
func TestJobsAreInTheOrderOfTheirLastEnds(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		names := []string{"succeeds", "fails", "missed", "again"} // no worker carries "canceled"
		for _, name := range names {
			f.register(newJob(name))
		}
		slices.Sort(names)
		if page, got, next := f.endedJobs("", 2); got != strings.Join(names, " ") || next != "" || !page[0].At.IsZero() {
			t.Errorf("before the order is kept, got %v, %q, want all jobs without times", page, next)
		}
		f.indexes()
		f.wantEnded("without an end", 2, "")

		ends := func(name string, how ledger.Outcome) {
			t.Helper()
			f.nextMillisecond()
			job := newJob(name)
			job.Retry.Max = 0
			f.finish(f.claim(w, f.enqueues(f.Ledger, job, rand.Text()), ledger.ClaimGranted), how, ledger.FinishRecorded)
		}
		ends("again", ledger.OutcomeSuccess)
		ends("succeeds", ledger.OutcomeSuccess)
		ends("fails", ledger.OutcomeFailure)
		f.nextMillisecond()
		f.canceled(newJob("canceled"), "1")
		f.nextMillisecond()
		missed := newJob("missed")
		f.tick(missed, f.cursor(missed, 1), 1, ledger.VerdictMissed)
		ends("again", ledger.OutcomeFailure)
		for most := 1; most < 7; most++ {
			f.wantEnded(fmt.Sprint("pages of ", most), most, "again missed canceled fails succeeds")
		}

		// an older build ends a run of one job; the order has a later end of another one already
		later := f.now().Add(time.Minute).UnixMilli()
		f.rdb.ZAdd(f.Context(), f.key("done:succeeds"), redis.Z{Score: float64(later), Member: "succeeds#x"})
		f.indexes()
		f.wantEnded("an end by an older build", 2, "succeeds again missed canceled fails")
		f.rdb.ZAdd(f.Context(), f.key("ends"), redis.Z{Score: -float64(later), Member: "fails"})
		f.indexes()
		if score := f.rdb.ZScore(f.Context(), f.key("ends"), "fails").Val(); -int64(score) != later {
			t.Errorf("an end at %d was replaced with one at %v", later, -score)
		}

		if err := f.Forget(f.Context(), "canceled", ledger.Act{Who: "ann", What: "forget job", On: "canceled"}); err != nil {
			f.Fatal(err)
		}
		if _, got, _ := f.endedJobs("", 10); strings.Contains(got, "canceled") {
			t.Errorf("a forgotten job is listed: %q", got)
		}

		// what no script removes
		long := f.now().Add(-time.Hour).UnixMilli()
		f.rdb.ZAdd(f.Context(), f.key("ends"), redis.Z{Score: -float64(long), Member: "forgotten by an older build"})
		f.indexes()
		if _, got, _ := f.endedJobs("", 10); strings.Contains(got, "forgotten") {
			t.Errorf("a job without finished runs is listed: %q", got)
		}

		// older builds have been alone for a while
		f.rdb.HSet(f.Context(), f.key("ledger"), "ends", f.now().Add(-16*time.Minute).UnixMilli())
		if page, _, next := f.endedJobs("", 2); len(page) != len(names) || next != "" || !page[0].At.IsZero() {
			t.Errorf("when the order is incomplete, got %v, %q, want all jobs without times", page, next)
		}
	})
}

// TestAJobThatEndsDuringTheWalkIsNotMissed wherever it has been in the order: behind the place of
// the walk, before it, or just there. Others are forgotten meanwhile.
func TestAJobThatEndsDuringTheWalkIsNotMissed(t *testing.T) {
	each(t, func(f *fixture) {
		const all, most = 12, 3
		f.indexes()
		ends := func(i int) {
			f.nextMillisecond()
			f.canceled(newJob(fmt.Sprint("job", i)), rand.Text())
		}
		for i := range all {
			ends(i)
		}
		seen := make(map[string]bool)
		place := ""
		for pages := 0; ; pages++ {
			page, _, next := f.endedJobs(place, most)
			for _, job := range page {
				seen[job.Job] = true
			}
			last, _ := strconv.Atoi(strings.TrimPrefix(page[len(page)-1].Job, "job"))
			switch pages {
			case 0:
				ends(last) // the place itself
				ends(0)
			case 1:
				if err := f.Forget(f.Context(), fmt.Sprint("job", last), ledger.Act{Who: "ann", What: "forget job", On: "x"}); err != nil {
					f.Fatal(err)
				}
				ends(1)
			case 2:
				ends(all - 1)
			}
			if place = next; place == "" {
				break
			}
		}
		if len(seen) != all {
			t.Errorf("of %d jobs, the walk has %v", all, seen)
		}
	})
}

// TestManyJobsMayEndTogether: more than a page in the same millisecond.
func TestManyJobsMayEndTogether(t *testing.T) {
	each(t, func(f *fixture) {
		f.indexes()
		var ends []redis.Z
		for i := range 30 {
			ends = append(ends, redis.Z{Score: -float64(1_700_000_000_000 + i/10), Member: fmt.Sprintf("job%02d", i)})
		}
		f.rdb.ZAdd(f.Context(), f.key("ends"), ends...)
		seen := make(map[string]bool)
		for place, pages := "", 0; pages == 0 || place != ""; pages++ {
			page, _, next := f.endedJobs(place, 4)
			for _, job := range page {
				seen[job.Job] = true
			}
			if place = next; pages > 30 {
				f.Fatal("the walk does not end")
			}
		}
		if len(seen) != 30 {
			t.Errorf("the walk has %d of 30 jobs", len(seen))
		}
	})
}

// TestAKnownDefinitionIsNotReadAgain until the job has another one.
func TestAKnownDefinitionIsNotReadAgain(t *testing.T) {
	each(t, func(f *fixture) {
		changing := described(newJob("changing"), "before")
		changing.Overlap = jobs.OverlapAllow
		f.carries("one", newJob("same"), ledger.StandingActive)
		f.carries("one", changing, ledger.StandingActive)
		first, err := f.JobsOf(f.Context(), []string{"changing", "none", "same"}, nil)
		if err != nil || len(first) != 2 {
			t.Fatalf("%v, %v, want two jobs", first, err)
		}
		known := func(job, hash string) *jobs.Job {
			for _, record := range first {
				if record.Job.Name == job && record.Hash == hash {
					return record.Job
				}
			}
			return nil
		}
		f.carries("two", described(changing, "after"), ledger.StandingActive)
		again, err := f.JobsOf(f.Context(), []string{"changing", "none", "same"}, known)
		if err != nil || len(again) != 2 {
			t.Fatalf("%v, %v, want two jobs", again, err)
		}
		if again[1].Job != first[1].Job {
			t.Error("an unchanged definition was read again")
		}
		if again[0].Job.Description != "after" || again[0].Hash == first[0].Hash {
			t.Errorf("after a change the definition is %q, with the hash %s", again[0].Job.Description, again[0].Hash)
		}
		f.rdb.HSet(f.Context(), f.key("cursor"), "same", "junk")
		if broken, err := f.JobsOf(f.Context(), []string{"same"}, known); err != nil || broken[0].Hash != "" || broken[0].Job == first[1].Job {
			t.Errorf("with a broken cursor: %+v, %v, want a placeholder that no caller keeps", broken, err)
		}
		if !again[0].Drifted || again[1].Drifted {
			t.Errorf("drifted are %v and %v, want only the changed job", again[0].Drifted, again[1].Drifted)
		}
	})
}
