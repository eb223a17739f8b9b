package guard

import (
	"os"
	"syscall"
	"testing"
	"time"
)

func TestNameOfAProcessDoesNotHideItsParent(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]struct {
		state  byte
		parent int
	}{
		"17 (sh) S 12 17 17 0 -1":       {'S', 12},
		"17 (a) Z 9 (b) (c)) R 4194304": {'R', 4194304},
		"17 (sh) Z 0 0":                 {'Z', 0},
		"17 (sh) X 1":                   {'X', 1},
		"17 (sh) S":                     {},
		"17 (sh)":                       {},
		"":                              {},
	} {
		if state, parent := parseStat([]byte(stat)); state != want.state || parent != want.parent {
			t.Errorf("%q: got %c and %d, want %c and %d", stat, state, parent, want.state, want.parent)
		}
	}
}

func TestAGuardWaitsForOrdersAndForTheEndOfItsCommand(t *testing.T) {
	t.Parallel()
	orders, worker, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Close()
	defer worker.Close()
	var end int
	attr := &syscall.SysProcAttr{}
	showEnd(attr, &end)
	command, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{Sys: attr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = command.Kill(); _, _ = command.Wait() }()
	if end == -1 {
		t.Fatal("this kernel shows no end of a process")
	}
	defer syscall.Close(end)
	const forever = time.Minute
	fd := int(orders.Fd())
	await := func(what string, want bool, orders, end int, timeout time.Duration) {
		t.Helper()
		for start := time.Now(); ; { // a signal of the runtime may end a wait early
			got := awaitOrder(orders, end, timeout)
			if passed := time.Since(start); got != want || passed >= forever {
				t.Fatalf("%s: got %v after %v, want %v at once", what, got, passed, want)
			} else if got || timeout == forever || passed >= timeout {
				return
			}
		}
	}
	await("nothing has happened", false, fd, end, 10*time.Millisecond)
	await("there is nothing to wait for", false, -1, -1, 10*time.Millisecond)
	if err := (Order{KillBy: 1}).Send(worker); err != nil {
		t.Fatal(err)
	}
	await("an order has arrived", true, fd, end, forever)
	if o, err := ReceiveOrder(orders); err != nil || o.KillBy != 1 {
		t.Fatalf("got %+v and %v", o, err)
	}
	await("the order has been read", false, fd, end, 10*time.Millisecond)
	_ = command.Kill()
	await("the command has ended", false, fd, end, forever)
	worker.Close()
	await("the worker is dead", true, fd, -1, forever)
}
