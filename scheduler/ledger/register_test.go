package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// registering passes each call of the script that registers a batch, with the name of the first job
// of the batch, to a function that sends it. Two calls are under way at a time.
type registering func(ctx context.Context, first string, send func() error) error

func (r registering) DialHook(next redis.DialHook) redis.DialHook { return next }
func (r registering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r registering) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	names := ledger.ScriptNames()
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || names[fmt.Sprint(cmd.Args()[1])] != "register" {
			return next(ctx, cmd)
		}
		// after the command, the SHA, the number of keys, the keys, and five for the batch
		first := 3 + cmd.Args()[2].(int) + 5
		err := r(ctx, fmt.Sprint(cmd.Args()[first]), func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

// forgotten returns a worker with this many jobs that Redis has lost since they were registered.
func (f *fixture) forgotten(n int) (*worker, []*jobs.Job) {
	f.Helper()
	w := f.worker("w")
	definitions := make([]*jobs.Job, n)
	for i := range definitions {
		definitions[i] = newJob(fmt.Sprintf("job%03d", i))
	}
	if _, err := w.Register(f.Context(), "config", definitions); err != nil {
		f.Fatal(err)
	}
	f.lose(w)
	return w, definitions
}

// wantLines checks for how many jobs a line records that their ticks were lost.
func (f *fixture) wantLines(when string, want int) {
	f.Helper()
	histories, err := f.rdb.Keys(f.Context(), f.key("hist:*")).Result()
	if err != nil {
		f.Fatal(err)
	}
	if len(histories) != want {
		f.Errorf("%s, %d jobs have a line for their lost ticks, want %d", when, len(histories), want)
	}
}

// TestARegistrationThatRunsOutOfTimeKeepsWhatWasAnswered lets the time for all calls end after the
// second reply. A second registration is not informed of the loss again.
func TestARegistrationThatRunsOutOfTimeKeepsWhatWasAnswered(t *testing.T) {
	each(t, func(f *fixture) {
		const answered = 2 * ledger.RegisterBatch
		w, definitions := f.forgotten(answered + 10)
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		w.client.Extension().Redis().AddHook(registering(func(_ context.Context, first string, send func() error) error {
			if first == definitions[answered].Name {
				cancel()
			}
			return send()
		}))
		registered, err := w.Register(ctx, "config", definitions)
		if !errors.Is(err, context.Canceled) {
			f.Errorf("got %v, want %v", err, context.Canceled)
		}
		f.wantLines("after the registration that was cut short", answered)
		if registered == nil || len(registered.Jobs) != answered || registered.Now.IsZero() {
			f.Fatalf("it returned %+v, want the %d jobs that were answered", registered, answered)
		}
		if _, err := w.Register(f.Context(), "config", definitions); err != nil {
			f.Fatal(err)
		}
		f.wantLines("after the whole registration", len(definitions))
	})
}

// TestADefinitionThatCannotBeWrittenDisturbsNoOtherBatch: it is found while the batch before it is
// under way, and that one's reply arrives later.
func TestADefinitionThatCannotBeWrittenDisturbsNoOtherBatch(t *testing.T) {
	each(t, func(f *fixture) {
		w, definitions := f.forgotten(2*ledger.RegisterBatch + 10)
		definitions[ledger.RegisterBatch+5].Args = json.RawMessage("{") // not JSON
		w.client.Extension().Redis().AddHook(registering(func(ctx context.Context, _ string, send func() error) error {
			err := send()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200 * time.Millisecond): // no other call has ended this one
				return err
			}
		}))
		registered, err := w.Register(f.Context(), "config", definitions)
		if err == nil || !strings.Contains(err.Error(), "job255") {
			f.Errorf("got %v, want an error that names the job", err)
		}
		f.wantLines("after the error", ledger.RegisterBatch)
		if registered == nil || len(registered.Jobs) != ledger.RegisterBatch {
			f.Errorf("it returned %+v, want the first %d jobs", registered, ledger.RegisterBatch)
		}
	})
}

// TestTheLastBatchOfAConfigFollowsAllOthers holds the first two batches until both are under way,
// and the second one until the last batch begins, which must not happen before it ends. Once Redis
// has the last batch, the config counts as carried.
func TestTheLastBatchOfAConfigFollowsAllOthers(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.worker("w")
		definitions := make([]*jobs.Job, 2*ledger.RegisterBatch+10)
		for i := range definitions {
			definitions[i] = newJob(fmt.Sprintf("job%03d", i))
		}
		// so that Redis knows the script
		if _, err := w.Register(f.Context(), "before", definitions[:1]); err != nil {
			f.Fatal(err)
		}
		both, last := make(chan struct{}), make(chan struct{})
		var begun, ended atomic.Int32
		w.client.Extension().Redis().AddHook(registering(func(ctx context.Context, first string, send func() error) error {
			switch begun.Add(1) {
			case 2:
				close(both)
			case 3:
				close(last)
				if n := ended.Load(); n != 2 {
					f.Errorf("the last batch begins when %d of the others have ended", n)
				}
			}
			select {
			case <-both:
			case <-ctx.Done():
				return ctx.Err()
			}
			if first == definitions[ledger.RegisterBatch].Name {
				select {
				case <-last:
				case <-time.After(200 * time.Millisecond): // it waits, as it must
				}
			}
			defer ended.Add(1)
			return send()
		}))
		limit, cancel := context.WithTimeout(f.Context(), 30*time.Second)
		defer cancel()
		if _, err := w.Register(limit, "config", definitions); err != nil {
			f.Fatalf("two batches are not under way at a time: %v", err)
		}
	})
}
