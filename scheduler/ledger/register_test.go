package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// registering passes each call of the script that registers a batch to a function, which sends it.
type registering func(ctx context.Context, send func() error) error

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
		err := r(ctx, func() error { return next(ctx, cmd) })
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

// TestARegistrationThatRunsOutOfTimeKeepsWhatWasAnswered lets the time for all calls end when the
// second reply arrives. A second registration is not informed of the loss again.
func TestARegistrationThatRunsOutOfTimeKeepsWhatWasAnswered(t *testing.T) {
	each(t, func(f *fixture) {
		const answered = 2 * ledger.RegisterBatch
		w, definitions := f.forgotten(answered + 10)
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		calls := 0
		w.client.Extension().Redis().AddHook(registering(func(_ context.Context, send func() error) error {
			calls++
			err := send()
			if calls == 2 {
				cancel()
			}
			return err
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
		w, definitions := f.forgotten(ledger.RegisterBatch + 10)
		definitions[ledger.RegisterBatch+5].Args = json.RawMessage("{") // not JSON
		w.client.Extension().Redis().AddHook(registering(func(ctx context.Context, send func() error) error {
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
