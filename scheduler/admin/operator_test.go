package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// BenchmarkEnqueue shows what the audit costs a request for a run.
func BenchmarkEnqueue(b *testing.B) {
	rdb := redistest.Client(b)
	for name, kept := range map[string]bool{"counted": true, "without audit": false} {
		b.Run(name, func(b *testing.B) {
			o, job := benchOperator(b, rdb)
			for i := 0; b.Loop(); i++ {
				request := ledger.Request{Job: job, ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue}
				var err error
				if kept {
					_, err = o.Enqueue(b.Context(), request, Actor{Who: "ann"})
				} else {
					_, err = o.ledger.Enqueue(b.Context(), request)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchOperator(b *testing.B, rdb *redis.Client) (*Operator, *jobs.Job) {
	b.Helper()
	space, err := locks.NewSpace(rdb, redistest.Namespace(b))
	if err != nil {
		b.Fatal(err)
	}
	return NewOperator(ledger.New(rdb, space), nil, nil, func(context.Context, []ledger.Due) bool { return true }, nil), &jobs.Job{
		Name: "nightly", Command: []string{"true"}, Queue: "default", History: jobs.History{Runs: 100, For: time.Hour},
	}
}

// breaking calls at for the scripts that have a run as an argument, before they are sent, and loses
// those for which it returns an error.
type breaking struct {
	run jobs.RunID
	at  func(send func() error) error
}

func (breaking) DialHook(next redis.DialHook) redis.DialHook { return next }
func (breaking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b breaking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || !slices.Contains(cmd.Args(), any(string(b.run))) {
			return next(ctx, cmd)
		}
		err := b.at(func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

// A replay that ends between its ticks says how many of them run again, and from which one to
// continue. That makes each of the others due once.
func TestAReplayThatStopsSaysHowToContinue(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	const fourth = "2026-03-01T04:00:00Z"
	from := time.Date(2026, 3, 1, 1, 0, 0, 0, time.UTC)
	continued, to := from.Add(3*time.Hour), from.Add(5*time.Hour)
	for name, test := range map[string]struct {
		at   int // the tick of which a command breaks, from 1
		do   func(cancel func(), send func() error) error
		keys ReplayKeys
		want string // how the error begins
		is   error
		more int // ticks that run again although the error counts three
	}{
		"no connection": {4, func(func(), func() error) error { return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED} }, SameKeys,
			"replay nightly: 3 of 6 ticks run again; to continue, replay from " + fourth + ": ", syscall.ECONNREFUSED, 0},
		"a lost reply": {4, func(_ func(), send func() error) error { return cmp.Or(send(), io.ErrUnexpectedEOF) }, SameKeys,
			"replay nightly: 3 of 6 ticks run again, and perhaps that of " + fourth + "; to continue, replay from " + fourth + ": ", io.ErrUnexpectedEOF, 1},
		"an interruption": {3, func(cancel func(), send func() error) error { cancel(); return send() }, SameKeys,
			"replay nightly: 3 of 6 ticks run again; to continue, replay from " + fourth + ": ", context.Canceled, 0},
		"an interruption, under new keys": {3, func(cancel func(), send func() error) error { cancel(); return send() }, NewKeys,
			"replay nightly: 3 of 6 ticks run again; to continue, replay from " + fourth + ": ", context.Canceled, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := redistest.Namespace(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			breaks := true
			options := *rdb.Options()
			broken := redis.NewClient(&options)
			defer broken.Close()
			broken.AddHook(breaking{jobs.TickRunID("nightly", from.Add(time.Duration(test.at-1)*time.Hour)), func(send func() error) error {
				if !breaks {
					return send()
				}
				return test.do(cancel, send)
			}})
			l := ledger.New(broken, must(locks.NewSpace(broken, namespace)))
			job := &jobs.Job{
				Name: "nightly", Schedule: "0 * * * *", Timezone: "UTC", Command: []string{"true"}, Queue: "default", Overlap: jobs.OverlapSkip,
				OnMissed: jobs.MissedLast, OnCrash: jobs.CrashRerun, MaxCrashes: 3, History: jobs.History{Runs: 100, For: 1000 * time.Hour},
			}
			must(l.Register(t.Context(), "config", []*jobs.Job{job}))
			var due []ledger.Due
			o := NewOperator(l, nil, func(ctx context.Context, some ...ledger.Due) error {
				due = append(due, some...)
				return ctx.Err()
			}, nil, func(err error) { t.Error(err) })

			n, err := o.Replay(ctx, "nightly", from, to, test.keys, Actor{Who: "ann"})
			if err == nil || n != 3 || !errors.Is(err, test.is) || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got %d, %v, want 3, and %q", n, err, test.want)
			}
			if len(due) != 3 {
				t.Errorf("%d runs were pushed, want 3", len(due))
			}
			breaks = false
			if n, err = o.Replay(t.Context(), "nightly", continued, to, test.keys, Actor{Who: "ann"}); err != nil || n != 3-test.more {
				t.Errorf("continued: got %d, %v, want the %d others", n, err, 3-test.more)
			}
			if runs := must(rdb.HLen(t.Context(), "{"+namespace+"}:run").Result()); runs != 6 {
				t.Errorf("%d runs are outstanding, want one for each of six ticks", runs)
			}
		})
	}
}
