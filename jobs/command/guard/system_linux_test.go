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
	command, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = command.Kill(); _, _ = command.Wait() }()
	end := endOf(command.Pid)
	if end == -1 {
		t.Fatal("this kernel shows no end of a process")
	}
	defer syscall.Close(end)
	fd := int(orders.Fd())
	expect := func(what string, ordered, ended bool, orders, end int) {
		t.Helper()
		limit := 10 * time.Millisecond
		if ordered || ended {
			limit = time.Minute
		}
		gotOrdered, gotEnded := false, false
		// a signal of the runtime may end a wait early
		for start := time.Now(); !gotOrdered && !gotEnded && time.Since(start) < limit; {
			gotOrdered, gotEnded = await(orders, end, limit)
		}
		if gotOrdered != ordered || gotEnded != ended {
			t.Fatalf("%s: got %v and %v, want %v and %v", what, gotOrdered, gotEnded, ordered, ended)
		}
	}
	expect("nothing has happened", false, false, fd, end)
	expect("there is nothing to wait for", false, false, -1, -1)
	if err := (Order{KillBy: 1}).Send(worker); err != nil {
		t.Fatal(err)
	}
	expect("an order has arrived", true, false, fd, end)
	if o, err := ReceiveOrder(orders); err != nil || o.KillBy != 1 {
		t.Fatalf("got %+v and %v", o, err)
	}
	expect("the order has been read", false, false, fd, end)
	_ = command.Kill()
	expect("the command has ended", false, true, fd, end)
	worker.Close()
	expect("the worker is dead", true, false, fd, -1)
}
