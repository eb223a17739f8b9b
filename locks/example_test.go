package locks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"lockstep/locks"
)

// someRedis replaces your Redis.
func someRedis() (rdb *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() { _ = rdb.Close(); server.Close() }
}

// settle replaces work that passes the token on to every system that can refuse an older one.
func settle(ctx context.Context, _ locks.Token) error { return ctx.Err() }

func Example() {
	rdb, stop := someRedis()
	defer stop()
	ctx := context.Background()

	client, err := locks.Open(ctx, rdb, locks.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close(ctx) }()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001", "bill:1002"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = hold.Release() }()

	err = settle(hold.Context(), hold.Token())
	fmt.Println(hold.Names(), err)
	// Output: [bill:1001 bill:1002] <nil>
}

func ExampleClient_TryAcquire() {
	rdb, stop := someRedis()
	defer stop()
	ctx := context.Background()
	client, err := locks.Open(ctx, rdb, locks.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close(ctx) }()

	hold, err := client.TryAcquire(ctx, locks.Exclusive("bill:1001"), locks.Info([]byte(`{"job":"settle"}`)))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.TryAcquire(ctx, locks.Exclusive("bill:1001", "bill:1002"))
	var busy *locks.BusyError
	if errors.As(err, &busy) {
		fmt.Println("busy:", busy.Resource, "held by us:", busy.Holder == hold.Session(), busy.Info)
	}
	fmt.Println(hold.Release())
	// Output:
	// busy: bill:1001 held by us: true {"job":"settle"}
	// <nil>
}

func ExampleWait() {
	rdb, stop := someRedis()
	defer stop()
	ctx := context.Background()
	client, err := locks.Open(ctx, rdb, locks.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close(ctx) }()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Acquire(ctx, locks.Exclusive("bill:1001"), locks.Wait(0)) // as TryAcquire does
	fmt.Println("busy:", errors.Is(err, locks.ErrBusy))

	released := make(chan error, 1)
	next, err := client.Acquire(ctx, locks.Exclusive("bill:1001"), locks.Wait(time.Minute),
		locks.OnWait(func(b *locks.BusyError) {
			fmt.Println("waiting for", b.Resource)
			go func() { released <- hold.Release() }()
		}))
	fmt.Println(next.Names(), err, <-released)
	// Output:
	// busy: true
	// waiting for bill:1001
	// [bill:1001] <nil> <nil>
}

// The context of Acquire bounds the work, too. So bound the wait alone with Wait, not with
// context.WithTimeout.
func ExampleClient_Acquire() {
	rdb, stop := someRedis()
	defer stop()
	ctx := context.Background()
	client, err := locks.Open(ctx, rdb, locks.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close(ctx) }()

	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001"), locks.Wait(5*time.Second))
	switch {
	case errors.Is(err, locks.ErrBusy):
		fmt.Println("skipped:", err)
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	defer func() { _ = hold.Release() }()

	// The work may take as long as it needs: the five seconds were for the wait.
	_, bounded := hold.Context().Deadline()
	fmt.Println("bounded:", bounded, "error:", settle(hold.Context(), hold.Token()))
	// Output: bounded: false error: <nil>
}

func ExampleSpace() {
	rdb, stop := someRedis()
	defer stop()
	ctx := context.Background()
	client, err := locks.Open(ctx, rdb, locks.Options{Name: "web-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close(ctx) }()
	if _, err := client.Acquire(ctx, locks.Exclusive("bill:1001")); err != nil {
		fmt.Println(err)
		return
	}

	space, err := locks.NewSpace(rdb, "lockstep")
	if err != nil {
		fmt.Println(err)
		return
	}
	listing, err := space.Read(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range listing.Holds {
		fmt.Println(h.Names, h.Session == client.Session(), h.LeaseLeft > 10*time.Second)
	}
	// Output: [bill:1001] true true
}
