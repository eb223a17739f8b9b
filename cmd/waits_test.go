package cmd

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"lockstep/locks"
)

// TestThousandRunsThatWaitForOneBillHoldUpNobody has two workers with two slots each; while a thousand runs wait for what
// this test holds, other jobs run on.
func TestThousandRunsThatWaitForOneBillHoldUpNobody(t *testing.T) {
	t.Parallel()
	const waits, others = 1000, 10
	f, server := newPack(t, `
worker: {concurrency: 2}
jobs:
  settle: {command: ["true"], lock: {exclusive: ["bill:{bill}"]}}
  other: {command: ["true"]}
`)
	rdb := server.Client(t)
	client, err := locks.Open(t.Context(), rdb, locks.Options{Namespace: "lockstep", Name: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	hold, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"))
	if err != nil {
		t.Fatal(err)
	}
	f.startAll(2)
	sender := asynq.NewClientFromRedisClient(rdb) // faster than so many processes
	for i := range waits {
		if _, err := sender.Enqueue(asynq.NewTask("settle", []byte(`{"bill": 1}`)), asynq.TaskID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, time.Minute, "all of them wait", func() bool {
		n, err := rdb.HLen(t.Context(), "{lockstep}:wait").Result()
		return err == nil && n == waits
	})
	began := time.Now()
	for i := range others {
		f.await(f.enqueue("other", fmt.Sprint(i)), "succeeded")
	}
	t.Logf("%d other runs, one after the other, took %s", others, time.Since(began))
	if n, err := rdb.HLen(t.Context(), "{lockstep}:wait").Result(); err != nil || n != waits {
		t.Errorf("%d runs wait, %v; want %d", n, err, waits)
	}
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the first of them have run", func() bool {
		n, err := rdb.HLen(t.Context(), "{lockstep}:wait").Result()
		return err == nil && n < waits-20
	})
}
