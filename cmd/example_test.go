package cmd_test

import (
	"context"
	"fmt"

	"lockstep/cmd"
	"lockstep/jobs"
)

// A binary with its own handlers is the whole tool: `acme start` is a worker with these handlers,
// and `acme job ls` lists jobs.
func ExampleMain() {
	type settleArgs struct {
		BillIDs []int `json:"bill_ids"`
	}
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "bills.settle", func(ctx context.Context, run *jobs.Run[settleArgs]) error {
		fmt.Fprintln(run.Output(), "settle", run.Args.BillIDs, "under token", run.Token())
		return ctx.Err()
	})
	cmd.Main(reg) // exits the process
}
