package locks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/redistest"
	"lockstep/locks/rule"
)

// These examples belong to the table in README.md: features of other libraries, done here.

// open replaces the start of your program, where it calls locks.Open on its Redis. Here each
// example has its own redis-server.
func open(ctx context.Context, o locks.Options) (client *locks.Client, stop func()) {
	server, err := redistest.Start(ctx, redistest.Options{})
	ensure(err)
	rdb := redis.NewClient(server.RedisOptions())
	// Leave it out. A server this young may have lost something, so a new space waits for a second.
	o.Grace = -1
	client, err = locks.Open(ctx, rdb, o)
	ensure(err)
	return client, func() {
		ensure(client.Close(ctx))
		ensure(rdb.Close())
		ensure(server.Stop())
	}
}

// ensure replaces the handling of errors.
func ensure(err error) {
	if err != nil {
		panic(err)
	}
}

// SETNX with a timestamp as the value, which says when others may take the lock over.
func Example_setnx() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.TryAcquire(ctx, locks.Exclusive("report"))
	ensure(err)
	// A live holder keeps its lock: the session is renewed, and clocks of two machines are never
	// compared.
	_, err = client.TryAcquire(ctx, locks.Exclusive("report"))
	fmt.Println("busy:", errors.Is(err, locks.ErrBusy))
	ensure(hold.Release())
	_, err = client.TryAcquire(ctx, locks.Exclusive("report"))
	fmt.Println("free:", err == nil)
	// Output:
	// busy: true
	// free: true
}

// SET NX PX with a random value, and a script that deletes the key only while it has that value.
func Example_compareAndDelete() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	first, err := client.Acquire(ctx, locks.Exclusive("report"))
	ensure(err)
	_, err = client.Space().Revoke(ctx, "report", first.Token(), locks.Seize, locks.Revocation{Reason: "an example"})
	ensure(err) // as if the time to live had run out
	next, err := client.Acquire(ctx, locks.Exclusive("report"))
	ensure(err)

	// The late release frees nothing of the next holder's, and reports that. The context ended
	// before.
	<-first.Context().Done()
	fmt.Println(errors.Is(first.Release(), locks.ErrLost))
	lock, err := client.Space().HeldBy(ctx, "report")
	ensure(err)
	fmt.Println(lock.Holder(next.Token()) != nil)
	// Output:
	// true
	// true
}

// boolean tryLock(bill)
func Example_tryLock() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.TryAcquire(ctx, locks.Exclusive("bill:1001"), locks.Info([]byte(`{"by":"settlement"}`)))
	ensure(err)
	defer func() { ensure(hold.Release()) }()

	_, err = client.TryAcquire(ctx, locks.Exclusive("bill:1001"))
	// more than false: the holder, since when, and how many wait
	if busy, ok := errors.AsType[*locks.BusyError](err); ok {
		fmt.Println(busy.Resource, busy.Hold == hold.ID(), busy.Info, busy.Queue)
	}
	// Output: bill:1001 true {"by":"settlement"} 0
}

// boolean tryLock(bill, timeout, unit)
func Example_tryLockTimeout() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	defer func() { ensure(hold.Release()) }()

	_, err = client.Acquire(ctx, locks.Exclusive("bill:1001"), locks.Wait(20*time.Millisecond))
	busy, ok := errors.AsType[*locks.BusyError](err)
	fmt.Println(ok && busy.Waited >= 20*time.Millisecond)
	// Output: true
}

// void lock(bill)
func Example_lock() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	released := make(chan error, 1)
	// waits in line, and gets the lock by the release
	next, err := client.Acquire(ctx, locks.Exclusive("bill:1001"),
		locks.OnWait(func(*locks.BusyError) { go func() { released <- hold.Release() }() }))
	ensure(err)
	ensure(<-released)
	fmt.Println(next.Names())
	ensure(next.Release())
	// Output: [bill:1001]
}

// void unLock(bill)
func Example_unlock() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	fmt.Println(hold.Release())
	fmt.Println(hold.Release()) // the same result; it cannot free what another holder has by now
	fmt.Println(hold.Context().Err())
	// Output:
	// <nil>
	// <nil>
	// context canceled
}

// The four of them for a list of bills.
func Example_lists() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()
	bills := []string{"bill:1003", "bill:1001", "bill:1002", "bill:1001"}

	// lock(list): sorted, without duplicates, all or none
	hold, err := client.Acquire(ctx, locks.Exclusive(bills...))
	ensure(err)
	fmt.Println(hold.Names())

	_, err = client.TryAcquire(ctx, locks.Exclusive("bill:1000", "bill:1002")) // tryLock(list)
	fmt.Println(errors.Is(err, locks.ErrBusy))
	// with a timeout
	_, err = client.Acquire(ctx, locks.Exclusive("bill:1000", "bill:1002"), locks.Wait(time.Millisecond))
	fmt.Println(errors.Is(err, locks.ErrBusy))
	// the refusal has left nothing held
	other, err := client.TryAcquire(ctx, locks.Exclusive("bill:1000"))
	ensure(err)

	ensure(other.Release())
	ensure(hold.Release()) // unLock(list): all of them
	// Output:
	// [bill:1001 bill:1002 bill:1003]
	// true
	// true
}

// A reentrant lock that counts its holder's locks and unlocks.
func Example_reentrant() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	var depth func(ctx context.Context, n int)
	depth = func(ctx context.Context, n int) {
		// calls Redis only at the first level
		hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
		ensure(err)
		defer func() { ensure(hold.Release()) }() // frees only at the last one
		if n > 0 {
			depth(hold.Context(), n-1) // the context has the lock
			return
		}
		fmt.Println("inside:", client.IsHeld(hold.Context(), "bill:1001"))
		// another context has not: threads do not matter
		_, err = client.TryAcquire(ctx0(ctx), locks.Exclusive("bill:1001"))
		fmt.Println("outside:", errors.Is(err, locks.ErrBusy))
	}
	depth(ctx, 3)
	lock, err := client.Space().HeldBy(ctx, "bill:1001")
	ensure(err)
	fmt.Println("holders:", len(lock.Holds))
	// Output:
	// inside: true
	// outside: true
	// holders: 0
}

// ctx0 replaces the context of another request: one without the holds of this one.
func ctx0(ctx context.Context) context.Context { return plain{ctx} }

type plain struct{ context.Context }

func (plain) Value(any) any { return nil }

// An expiration: how long the work may take at most.
func ExampleMaxHold() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{Lease: 2 * time.Second})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"), locks.MaxHold(20*time.Millisecond))
	ensure(err)
	<-hold.Context().Done() // the work is canceled first; the lock passes on a little later
	cause := context.Cause(hold.Context())
	fmt.Println(errors.Is(cause, locks.ErrExpired), errors.Is(hold.Release(), locks.ErrLost))
	// Output: true true
}

type settlement struct {
	IDs []int `json:"ids"`
}

// Waiting, as a number of tries with pauses between them.
func Example_retries() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	// 10 tries every 500 ms are five seconds in line: without polling, and no later request is
	// served first.
	bills, err := rule.New[settlement](rule.Options{Exclusive: []string{"bill:{ids[*]}"}, Wait: 5 * time.Second})
	ensure(err)
	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	done := make(chan error, 1)
	go func() {
		done <- rule.Do(ctx, client, bills, settlement{IDs: []int{1001}}, func(context.Context, *locks.Hold) error {
			fmt.Println("its turn")
			return nil
		})
	}()
	ensure(hold.Release())
	fmt.Println(<-done)
	// Output:
	// its turn
	// <nil>
}

// RLock.tryLock(waitTime, leaseTime, unit)
func Example_waitAndLease() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"), locks.Wait(time.Second), locks.MaxHold(time.Minute))
	ensure(err)
	fmt.Println(hold.Names(), hold.Release())
	// Output: [bill:1001] <nil>
}

// RFairLock
func Example_fair() {
	ctx := context.Background()
	// strictly first in, first out, also for bundles
	client, stop := open(ctx, locks.Options{ReserveAfter: -1})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	order := make(chan int, 3)
	for i := range 3 {
		queued := make(chan bool)
		go func() {
			next, err := client.Acquire(ctx, locks.Exclusive("bill:1001"), locks.OnWait(func(*locks.BusyError) { close(queued) }))
			ensure(err)
			order <- i
			ensure(next.Release())
		}()
		<-queued
	}
	ensure(hold.Release())
	fmt.Println(<-order, <-order, <-order)
	// Output: 0 1 2
}

// RMultiLock
func Example_multi() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	// one step in Redis: others see all of it or nothing, and cannot deadlock with it
	hold, err := client.Acquire(ctx,
		locks.Exclusive("bill:1001", "bill:1002"), locks.Exclusive("account:7"), locks.Shared("rates:2026-11"))
	ensure(err)
	for _, item := range hold.Items() {
		fmt.Println(item.Mode, item.Name)
	}
	ensure(hold.Release())
	// Output:
	// exclusive account:7
	// exclusive bill:1001
	// exclusive bill:1002
	// shared rates:2026-11
}

// RReadWriteLock
func Example_readWrite() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	reader, err := client.Acquire(ctx, locks.Shared("rates:2026-11"))
	ensure(err)
	second, err := client.TryAcquire(ctx, locks.Shared("rates:2026-11"))
	fmt.Println("two readers:", err == nil)
	_, err = client.TryAcquire(ctx, locks.Exclusive("rates:2026-11"))
	fmt.Println("and a writer:", err == nil)
	ensure(second.Release())

	// A reader becomes the writer for a while, and no other writer can have come between.
	writer, err := client.Acquire(reader.Context(), locks.Exclusive("rates:2026-11"))
	ensure(err)
	fmt.Println("upgraded:", writer.Token() > reader.Token())
	ensure(writer.Release())
	ensure(reader.Release())
	// Output:
	// two readers: true
	// and a writer: false
	// upgraded: true
}

// A writer that becomes a reader lets other readers in and no other writer between.
func ExampleHold_Downgrade() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("rates:2026-11"))
	ensure(err)
	ensure(hold.Downgrade(ctx, "rates:2026-11"))
	_, err = client.TryAcquire(ctx, locks.Shared("rates:2026-11"))
	fmt.Println(hold.Items()[0].Mode, err)
	// Output: shared <nil>
}

// RSemaphore, RPermitExpirableSemaphore
func ExampleClient_Declare() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	_, err := client.Declare(ctx, "partner-api", locks.PermitLimit{Permits: 3, Version: 2})
	ensure(err)
	// an older configuration
	limit, err := client.Declare(ctx, "partner-api", locks.PermitLimit{Permits: 10, Version: 1})
	fmt.Println(limit.Permits, err)

	hold, err := client.Acquire(ctx, locks.Permits("partner-api", 2))
	ensure(err)
	_, err = client.TryAcquire(ctx, locks.Permits("partner-api", 2))
	fmt.Println("two more:", err == nil)
	_, err = client.TryAcquire(ctx, locks.Permits("partner-api", 1))
	fmt.Println("one more:", err == nil)
	ensure(hold.Release())
	// Output:
	// 3 <nil>
	// two more: false
	// one more: true
}

// RFencedLock
func Example_fenced() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()
	// kept beside the data that the lock protects; guard.SQL and guard.Redis keep it in a database
	var store guard.Memory

	paused, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	token := paused.Token()
	ensure(paused.Release()) // as if its lease had ended while it was stopped

	next, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	fmt.Println(next.Token() > token)
	fmt.Println(store.Check(ctx, next.Token(), "bill:1001"))
	fmt.Println(errors.Is(store.Check(ctx, token, "bill:1001"), guard.ErrStale))
	// Output:
	// true
	// <nil>
	// true
}

// @SchedulerLock(lockAtMostFor = "10m", lockAtLeastFor = "1m")
func Example_shedLock() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	once, err := rule.New[struct{}](rule.Options{
		Exclusive: []string{"report"}, OnBusy: rule.BusySkip, MaxHold: 10 * time.Minute, MinHold: time.Minute,
	})
	ensure(err)
	report := rule.Wrap(client, once, func(context.Context, struct{}) error {
		fmt.Println("reports")
		return nil
	})
	fmt.Println(report(ctx, struct{}{}))
	// a replica that is a second late finds the lock taken, although the work is done
	fmt.Println(report(ctx, struct{}{}))
	// Output:
	// reports
	// <nil>
	// <nil>
}

// Taking a lock back from its holder.
func ExampleSpace_Revoke() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	lock, err := client.Space().HeldBy(ctx, "bill:1001")
	ensure(err)
	why := locks.Revocation{By: "ada", Reason: "month's end"}
	_, err = client.Space().Revoke(ctx, "bill:1001", lock.Holds[0].Token, locks.Ask, why)
	ensure(err)

	<-hold.Asked() // the holder may finish by itself; locks.Take would have ended its context
	fmt.Println(hold.Why().By, hold.Why().Reason, hold.Context().Err())
	ensure(hold.Release())
	_, err = client.Space().Revoke(ctx, "bill:1001", lock.Holds[0].Token, locks.Seize, why)
	fmt.Println(errors.Is(err, locks.ErrStale))
	// Output:
	// ada month's end <nil>
	// true
}

// A process works under the lock of the process that started it.
func ExampleClient_Join() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	parent, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	ensure(err)
	id := parent.ID() // LOCKSTEP_HOLD of the child, which has its own client

	joined, err := client.Join(ctx, id)
	ensure(err)
	// asks only for the second
	hold, err := client.Acquire(joined.Context(), locks.Exclusive("bill:1001", "bill:1002"))
	ensure(err)
	fmt.Println(hold.Names())
	ensure(hold.Release())
	ensure(joined.Release()) // frees nothing: it is the parent's
	fmt.Println(parent.Release())
	// Output:
	// [bill:1001 bill:1002]
	// <nil>
}
