package admin

import (
	"context"
	"fmt"
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
