package ledger_test

import (
	"context"
	"encoding/json"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// A handler asks for a run for each order. It passes its context on, so each run is recorded as
// made from within its own.
func ExampleLedger_Enqueue() {
	type importArgs struct {
		Orders []string `json:"orders"`
	}
	var book *ledger.Ledger // of ledger.New, in Registry.OnStart
	registry := jobs.NewRegistry()
	jobs.Handle(registry, "orders.import", func(ctx context.Context, run *jobs.Run[importArgs]) error {
		bill, err := book.Job(ctx, "bill-order")
		if err != nil {
			return err
		}
		for _, order := range run.Args.Orders {
			args, err := json.Marshal(map[string]string{"order": order})
			if err != nil {
				return err
			}
			// The ID is that of the order: a second attempt finds the run that the first one asked
			// for.
			request := ledger.Request{Job: bill.Job, ID: order, Named: true, Args: args, Trigger: ledger.TriggerEnqueue}
			if _, err := book.Enqueue(ctx, request); err != nil {
				return err
			}
		}
		return nil
	})
}
