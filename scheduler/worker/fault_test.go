package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// fault breaks commands of a worker.
type fault struct {
	breaks func(cmd redis.Cmder, send func() error) error
}

func (f fault) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f fault) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f fault) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := f.breaks(cmd, func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

// broken gives a worker a client of its own, whose commands break.
func (f *fleet) broken(breaks func(redis.Cmder, func() error) error) func(*worker.Options) {
	return func(o *worker.Options) {
		options := *f.rdb.Options()
		rdb := redis.NewClient(&options)
		f.Cleanup(func() { _ = rdb.Close() })
		rdb.AddHook(fault{breaks: breaks})
		o.Redis = rdb
	}
}

// says tells whether a text is one of the words of a command.
func says(cmd redis.Cmder, text string) bool {
	return slices.ContainsFunc(cmd.Args(), func(arg any) bool { return fmt.Sprint(arg) == text })
}

var errLost = errors.New("the answer is lost")

// TestLostAnswerToAFinishIsRecordedOnce: a finish is applied, its worker does not hear of it and sends it again. It changes
// nothing any more, the locks and the slot are free, and no other attempt begins.
func TestLostAnswerToAFinishIsRecordedOnce(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("settle", d.handle, func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill"} })
	var lost atomic.Int32
	f.start(f.broken(func(cmd redis.Cmder, send func() error) error {
		if !says(cmd, "succeeded") || lost.Load() == 2 { // a finish is the only command that says so
			return send()
		}
		err := send()
		if !redis.HasErrorPrefix(err, "NOSCRIPT") {
			lost.Add(1)
			err = errLost
		}
		return err
	}), func(o *worker.Options) { o.Concurrency = 1 })
	for i := range 3 {
		record := f.awaitState(f.enqueue(job, fmt.Sprint(i)), ledger.Succeeded)
		if len(record.Attempts) != 1 || record.Crashes != 0 || record.Reason != "" {
			t.Errorf("%+v, want one attempt that succeeded", record)
		}
	}
	if got := d.all(); len(got) != 3 {
		t.Errorf("got runs %v, want three", got)
	}
	if lost.Load() != 2 {
		t.Errorf("%d answers were lost, want 2: nothing was tested", lost.Load())
	}
}
