package rule_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/rule"
)

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

type settlement struct {
	Tenant string `json:"tenant"`
	IDs    []int  `json:"ids"`
}

// Key expressions and a prefix.
func ExampleNew() {
	bills, err := rule.New[settlement](rule.Options{
		Prefix:    "shop:",
		Exclusive: []string{"bill:{ids[*]}"}, // a key for each element
		Shared:    []string{"tenant:{tenant}"},
	})
	ensure(err)
	items, err := bills.Items(settlement{Tenant: "acme", IDs: []int{1002, 1001}})
	ensure(err)
	for _, item := range items {
		fmt.Println(item.Mode, item.Name)
	}

	// at start, not at the first call
	_, err = rule.New[settlement](rule.Options{Exclusive: []string{"bill:{id[*]}"}})
	fmt.Println(err)
	// Output:
	// exclusive shop:bill:1001
	// exclusive shop:bill:1002
	// shared shop:tenant:acme
	// lock rule: lock key "bill:{id[*]}": field "id" of the args is missing: a rule_test.settlement has ids, tenant
}

// An annotation on a method: the lock is declared beside the method, and its callers do not know
// it.
func ExampleWrap() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	bills, err := rule.New[settlement](rule.Options{Exclusive: []string{"bill:{ids[*]}"}})
	ensure(err)
	settle := rule.Wrap(client, bills, func(ctx context.Context, args settlement) error {
		hold := locks.FromContext(ctx)
		fmt.Println("settles", args.IDs, "under", hold.Names(), hold.Token() > 0)
		return nil
	})

	fmt.Println(settle(ctx, settlement{IDs: []int{1001, 1002}}))
	// Output:
	// settles [1001 1002] under [bill:1001 bill:1002] true
	// <nil>
}

// The same for one call.
func ExampleDo() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	bills, err := rule.New[settlement](rule.Options{Exclusive: []string{"bill:{ids[*]}"}, OnBusy: rule.BusyFail})
	ensure(err)
	args := settlement{IDs: []int{1001}}
	err = rule.Do(ctx, client, bills, args, func(context.Context, *locks.Hold) error {
		_, err := client.TryAcquire(ctx, locks.Exclusive("bill:1001"))
		fmt.Println("busy meanwhile:", errors.Is(err, locks.ErrBusy))
		return errors.New("the bill is wrong")
	})
	fmt.Println(err)
	// Output:
	// busy meanwhile: true
	// the bill is wrong
}

// A lock around an HTTP handler, with the key from the request.
func ExampleDo_http() {
	ctx := context.Background()
	client, stop := open(ctx, locks.Options{})
	defer stop()

	bills, err := rule.New[settlement](rule.Options{Exclusive: []string{"tenant:{tenant}"}, OnBusy: rule.BusyFail})
	ensure(err)
	locked := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			args := settlement{Tenant: r.PathValue("tenant")}
			err := rule.Do(r.Context(), client, bills, args, func(ctx context.Context, _ *locks.Hold) error {
				next.ServeHTTP(w, r.WithContext(ctx))
				return nil
			})
			if busy, ok := errors.AsType[*locks.BusyError](err); ok {
				http.Error(w, busy.Error(), http.StatusLocked)
			} else if errors.Is(err, locks.ErrInvalid) {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /tenants/{tenant}", locked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "under ", locks.FromContext(r.Context()).Names())
	})))

	put := func() {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPut, "/tenants/acme", nil))
		fmt.Printf("%d %.19s\n", w.Code, w.Body)
	}
	put()
	hold, err := client.Acquire(ctx, locks.Exclusive("tenant:acme"))
	ensure(err)
	put()
	ensure(hold.Release())
	// Output:
	// 200 under [tenant:acme]
	// 423 tenant:acme is held
}
