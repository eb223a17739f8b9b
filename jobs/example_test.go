package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lockstep/jobs"
)

func ExampleHandle() {
	type SettleArgs struct {
		BillIDs []int `json:"bill_ids"`
	}
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "bills.settle", func(ctx context.Context, run *jobs.Run[SettleArgs]) error {
		fmt.Println("settle", run.Args.BillIDs, "under token", run.Token())
		// Pass ctx to everything that may take long: it ends before the lock can pass on.
		return ctx.Err()
	})

	// A worker does this while it holds the locks of the run.
	err := reg.Execute(context.Background(), &jobs.Attempt{
		Job:   &jobs.Job{Name: "settle-bills", Handler: "bills.settle"},
		Run:   jobs.RequestRunID("settle-bills", "4711"),
		Args:  json.RawMessage(`{"bill_ids": [1001, 1002]}`),
		Token: 1795222978000042,
	})
	fmt.Println(err)
	// Output:
	// settle [1001 1002] under token 1795222978000042
	// <nil>
}

func ExampleStrict() {
	type SettleArgs struct {
		BillIDs []int `json:"bill_ids"`
	}
	reg := jobs.NewRegistry()
	settle := func(context.Context, *jobs.Run[SettleArgs]) error { return nil }
	jobs.Handle(reg, "bills.settle", settle)
	jobs.Handle(reg, "bills.settle-strict", settle, jobs.Strict)

	for _, handler := range reg.Names() {
		fmt.Println(reg.Execute(context.Background(), &jobs.Attempt{
			Job: &jobs.Job{Name: "settle-bills", Handler: handler}, Args: json.RawMessage(`{"bill_ids": [1001], "currency": "EUR"}`),
		}))
	}
	// Output:
	// <nil>
	// args of handler bills.settle-strict: unknown field "currency"
}

func ExamplePermanent() {
	errNoSuchBill := errors.New("no such bill")
	settle := func(bill int) error {
		// A retry will not create the bill.
		return jobs.Permanent(fmt.Errorf("bill %d: %w", bill, errNoSuchBill))
	}
	err := settle(1001)
	fmt.Println(err, jobs.IsPermanent(err), errors.Is(err, errNoSuchBill))
	// Output: bill 1001: no such bill true true
}

func ExampleRetryAfter() {
	err := jobs.RetryAfter(30*time.Second, errors.New("the partner is in maintenance"))
	delay, ok := jobs.RetryDelay(err)
	fmt.Println(err, delay, ok)
	// Output: the partner is in maintenance 30s true
}

func ExampleParseKey() {
	key, err := jobs.ParseKey("bill:{bill_ids[*]}")
	if err != nil {
		panic(err)
	}
	fmt.Println(key.Expand(json.RawMessage(`{"bill_ids": [1001, 1002]}`)))
	fmt.Println(key.Expand(json.RawMessage(`{"bills": []}`)))
	// Output:
	// [bill:1001 bill:1002] <nil>
	// [] lock key "bill:{bill_ids[*]}": field "bill_ids" of the args is missing
}
