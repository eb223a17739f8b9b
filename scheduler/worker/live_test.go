package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// reader follows a run as a client does.
type reader struct {
	f     *fleet
	run   jobs.RunID
	last  int64
	text  map[int]string // by attempt
	upto  map[int]int64
	ended map[int]bool
	gaps  int
	state ledger.State
}

func (f *fleet) reader(run jobs.RunID) *reader {
	return &reader{f: f, run: run, text: make(map[int]string), upto: make(map[int]int64), ended: make(map[int]bool)}
}

// read reads what is new.
func (r *reader) read() {
	r.f.Helper()
	followed, err := r.f.ledger.Follow(r.f.Context(), r.run, r.last)
	if err != nil {
		r.f.Fatal(err)
	}
	r.last, r.state = followed.Last, followed.State
	for _, p := range followed.Printed {
		if p.From > r.upto[p.Attempt] {
			r.gaps++
		}
		if p.Upto > r.upto[p.Attempt] {
			r.text[p.Attempt] += p.Text
			r.upto[p.Attempt] = p.Upto
		}
		r.ended[p.Attempt] = r.ended[p.Attempt] || p.End
	}
}

// awaits reads until an attempt has printed a text.
func (r *reader) awaits(attempt int, text string) {
	r.f.Helper()
	r.f.await(fmt.Sprintf("%q by attempt %d", text, attempt), func() bool {
		r.read()
		return strings.Contains(r.text[attempt], text)
	})
}

// printing is a job that prints what it receives, until the channel is closed.
func (f *fleet) printing(name string, say <-chan string, change ...func(*jobs.Job)) *jobs.Job {
	return f.job(name, func(ctx context.Context, r *jobs.Run[struct{}]) error {
		for {
			select {
			case text, more := <-say:
				if !more {
					return nil
				}
				fmt.Fprint(r.Output(), text)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}, change...)
}

func TestOutputIsFollowedWhileItIsPrinted(t *testing.T) {
	f := newFleet(t)
	say := make(chan string)
	job := f.printing("prints", say)
	const secret = "alpha-5f0c81"
	f.start(func(o *worker.Options) {
		o.Expand = func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) {
			return job, []jobs.Secret{{Reference: "${SECRET}", Value: secret}}, nil
		}
	})
	id := f.enqueue(job, "x")
	say <- "before any client: ö, "
	first := f.reader(id)
	first.awaits(1, "before any client: ö, ")
	second := f.reader(id)
	second.awaits(1, "before any client: ö, ")
	say <- "then alpha-"
	first.awaits(1, "then ") // "alpha-" may be the beginning of the secret
	say <- "5f0c81, half of a character \xc3"
	first.awaits(1, "then ${SECRET}, half of a character ")
	say <- "\xb6, and the end"
	close(say)
	f.await("its end", func() bool { // the readers continue, so that they do not count as gone
		first.read()
		second.read()
		return first.state.Final()
	})
	const want = "before any client: ö, then ${SECRET}, half of a character ö, and the end"
	for _, r := range []*reader{first, second} {
		r.read()
		if r.text[1] != want || !r.ended[1] || r.gaps > 0 || r.state != ledger.StateSucceeded {
			t.Errorf("got %q, its end: %v, %d gaps, %s; want %q at once when the run has ended", r.text[1], r.ended[1], r.gaps, r.state, want)
		}
	}
}

func TestTheNextAttemptIsFollowedOnAnotherWorker(t *testing.T) {
	f := newFleet(t)
	say := make(chan string)
	job := f.printing("moves", say)
	first := f.start()
	id := f.enqueue(job, "x")
	say <- "one"
	r := f.reader(id)
	r.awaits(1, "one")
	second := f.start()
	f.dies(first)
	r.f.await("its next attempt", func() bool {
		select {
		case say <- "two": // perhaps the first attempt still takes it
		case <-time.After(10 * time.Millisecond):
		}
		r.read()
		return strings.Contains(r.text[2], "two")
	})
	if record := f.awaitState(id, ledger.StateRunning); record.Last().Number != 2 || record.Last().Worker == record.Attempts[0].Worker {
		t.Errorf("%+v, want a second attempt under another session of %s", record.Attempts, second.ID())
	}
	close(say)
	f.awaitState(id, ledger.StateSucceeded)
}

func TestAWorkerPassesNothingOnWithoutAClient(t *testing.T) {
	f := newFleet(t)
	say := make(chan string)
	job := f.printing("prints", say)
	f.start()
	id := f.enqueue(job, "x")
	live := "{" + f.namespace + "}:live:" + string(id)
	exists := func() bool {
		n, err := f.rdb.Exists(t.Context(), live).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	say <- "one"
	if exists() {
		t.Error("output is in Redis although no client has asked for it")
	}
	r := f.reader(id)
	r.awaits(1, "one")
	// The client vanishes. Nothing is printed, and still the worker forgets it.
	if err := f.rdb.HSet(t.Context(), live, "until", 1).Err(); err != nil {
		t.Fatal(err)
	}
	f.await("the worker to forget its client", func() bool { return !exists() })
	say <- "two"
	say <- "three" // so two was printed
	if exists() {
		t.Error("output is in Redis although its client has gone")
	}
	again := f.reader(id)
	again.awaits(1, "onetwothree")
	close(say)
	f.awaitState(id, ledger.StateSucceeded)
}

// TestAWorkerBeginsAnewForANewClient removes from Redis what was passed on, as if that was too long
// ago. No notice tells the worker.
func TestAWorkerBeginsAnewForANewClient(t *testing.T) {
	f := newFleet(t)
	say := make(chan string)
	job := f.printing("prints", say)
	f.start()
	id := f.enqueue(job, "x")
	say <- "one, "
	f.reader(id).awaits(1, "one, ")
	forget := func() {
		t.Helper()
		live, fields := "{"+f.namespace+"}:live:"+string(id), []string{"token"}
		for i := range 32 {
			fields = append(fields, fmt.Sprint("e", i))
		}
		later := time.Now().Add(time.Hour).UnixMilli()
		if err := f.rdb.HSet(t.Context(), live, "asked", later, "until", later).Err(); err != nil {
			t.Fatal(err)
		}
		if err := f.rdb.Persist(t.Context(), live).Err(); err != nil {
			t.Fatal(err)
		}
		if err := f.rdb.HDel(t.Context(), live, fields...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	say <- "two, "
	second := f.reader(id)
	second.awaits(1, "one, two, ")
	forget()
	say <- "three"
	close(say)
	f.awaitState(id, ledger.StateSucceeded)
	third := f.reader(id)
	third.read()
	second.read()
	for _, r := range []*reader{second, third} {
		if !strings.HasSuffix(r.text[1], "one, two, three") || !r.ended[1] || r.gaps > 0 {
			t.Errorf("got %q, its end: %v, %d gaps; want all of the output", r.text[1], r.ended[1], r.gaps)
		}
	}
}

func TestAJobThatPrintsFastIsNotSlowedDown(t *testing.T) {
	f := newFleet(t)
	const parts, size = 400, 64 << 10
	begun := make(chan struct{})
	job := f.job("fast", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		fmt.Fprint(r.Output(), "begins")
		select {
		case <-begun:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for range parts {
			fmt.Fprint(r.Output(), strings.Repeat("x", size))
		}
		fmt.Fprint(r.Output(), "ends")
		return nil
	})
	f.start()
	id := f.enqueue(job, "x")
	r := f.reader(id)
	r.awaits(1, "begins")
	close(begun)
	live, most := "{"+f.namespace+"}:live:"+string(id), int64(0)
	f.await("its end", func() bool {
		r.read()
		if n, err := f.rdb.MemoryUsage(t.Context(), live).Result(); err == nil {
			most = max(most, n)
		}
		return r.state.Final()
	})
	if !strings.HasSuffix(r.text[1], "ends") || !r.ended[1] || r.gaps == 0 || r.upto[1] != int64(len("beginsends")+parts*size) {
		t.Errorf("got %d bytes up to %d with %d gaps, want the end of the output, and parts left out", len(r.text[1]), r.upto[1], r.gaps)
	}
	if most > 1<<20 {
		t.Errorf("Redis had %d bytes of it, want less than 1 MiB", most)
	}
}

func TestTheNumberOfFollowedAttemptsIsBounded(t *testing.T) {
	f := newFleet(t)
	say := make(chan string)
	job := f.printing("many", say)
	const n = 20
	f.start(func(o *worker.Options) { o.Concurrency = n })
	var readers []*reader
	for i := range n {
		readers = append(readers, f.reader(f.enqueue(job, fmt.Sprint(i))))
	}
	passing := func() (passing int) {
		for _, r := range readers {
			followed, err := f.ledger.Follow(t.Context(), r.run, 0)
			if err != nil {
				t.Fatal(err)
			}
			if followed.Passing {
				passing++
			}
		}
		return passing
	}
	f.await("16 attempts to be followed", func() bool { return passing() >= 16 })
	if got := passing(); got != 16 {
		t.Errorf("the output of %d attempts is passed on, want 16", got)
	}
	close(say)
	for _, r := range readers {
		f.awaitState(r.run, ledger.StateSucceeded)
	}
}
