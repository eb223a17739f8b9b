package locks_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// permitsInAll is the number of permits of the resource "p" in these histories.
const permitsInAll = 2

// asked is one call of a history, with its result.
type asked struct {
	release string // the hold to release; "" for a request
	items   []locks.Item
	tries   bool // the request waits only for a time, so that it may be refused
}

// came is the result of a call: the hold's ID, or "" for a refusal, and what was in the way.
type came struct {
	id    string
	inWay locks.HoldID
}

// lockModel is a lock space in which every call takes effect in one moment. Its state is which hold
// has what. A request takes its whole bundle when all of it is free, and is refused at a moment
// when some of it is not. The model does not decide which request comes first.
var lockModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		held := parseState(state.(string))
		call, result := input.(asked), output.(came)
		switch {
		case call.release != "":
			if _, ok := held[call.release]; !ok {
				return false, state
			}
			delete(held, call.release)
		case result.id == "":
			return call.tries && !fits(held, call.items), state
		case !fits(held, call.items):
			return false, state
		default:
			held[result.id] = call.items
		}
		return true, formatState(held)
	},
	DescribeOperation: func(input, output any) string {
		call, result := input.(asked), output.(came)
		switch {
		case call.release != "":
			return "release " + call.release
		case result.id == "":
			return fmt.Sprintf("%s refused because of %s", call.items, result.inWay)
		}
		return fmt.Sprintf("%s as %s", call.items, result.id)
	},
}

// fits reports whether a bundle is free beside what is held.
func fits(held map[string][]locks.Item, items []locks.Item) bool {
	for _, want := range items {
		left := permitsInAll
		for _, has := range slices.Concat(slices.Collect(maps.Values(held))...) {
			switch {
			case has.Name != want.Name:
			case has.Mode == locks.ModePermits:
				left -= has.N
			case has.Mode == locks.ModeExclusive || want.Mode == locks.ModeExclusive:
				return false
			}
		}
		if want.Mode == locks.ModePermits && want.N > left {
			return false
		}
	}
	return true
}

// formatState formats a state as a string, so that states can be compared: hold=item,item
// hold=item...
func formatState(held map[string][]locks.Item) string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(held)) {
		b.WriteString(" " + id + "=")
		for i, item := range held[id] {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(item.String())
		}
	}
	return strings.TrimSpace(b.String())
}

func parseState(state string) map[string][]locks.Item {
	held := make(map[string][]locks.Item)
	for _, hold := range strings.Fields(state) {
		id, items, _ := strings.Cut(hold, "=")
		for text := range strings.SplitSeq(items, ",") {
			item, err := space.ParseItem(text)
			if err != nil {
				panic(err)
			}
			held[id] = append(held[id], item)
		}
	}
	return held
}

// linearHistory makes each client do some calls at the same time as the others. It returns the
// history, and errors without an explanation.
func linearHistory(t *testing.T, clients []*locks.Client, seed uint64, calls int) (history []porcupine.Operation, errs []error) {
	var mu sync.Mutex
	fault := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	note := func(client int, call asked, from int64, result came) {
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: call, Call: from, Output: result, Return: stamp()})
	}
	ctx := within(t, hangs)
	var running sync.WaitGroup
	for i, c := range clients {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			var held []*locks.Hold
			releaseOne := func() {
				n := random.IntN(len(held))
				from := stamp()
				if err := held[n].Release(); err != nil {
					fault(err)
				}
				note(i, asked{release: string(held[n].ID())}, from, came{})
				held = slices.Delete(held, n, n+1)
			}
			for range calls {
				if len(held) > 0 && random.IntN(2) == 0 {
					releaseOne()
					continue
				}
				var items []locks.Item
				for _, name := range []string{"a", "b", "p"} {
					switch random.IntN(5) {
					case 0:
						items = append(items, locks.Item{Name: name, Mode: locks.ModeExclusive})
					case 1:
						items = append(items, locks.Item{Name: name, Mode: locks.ModeShared})
					}
				}
				if len(items) == 0 {
					items = []locks.Item{{Name: "a", Mode: locks.ModeExclusive}}
				}
				for k := range items {
					if items[k].Name == "p" {
						items[k] = locks.Item{Name: "p", Mode: locks.ModePermits, N: 1 + random.IntN(permitsInAll)}
					}
				}
				// A client with a hold bounds its waiting, because circles of requests that are not
				// nested are not detected.
				asks, tries := parts(items), true
				switch dice := random.IntN(3); {
				case dice == 0:
					asks = append(asks, locks.Wait(0))
				case dice == 1 || len(held) > 0:
					asks = append(asks, locks.Wait(time.Duration(1+random.IntN(5))*time.Millisecond))
				default:
					tries = false
				}
				from := stamp()
				hold, err := c.Acquire(ctx, asks...)
				var busy *locks.BusyError
				switch {
				case err == nil:
					note(i, asked{items: items}, from, came{id: string(hold.ID())})
					held = append(held, hold)
				case errors.As(err, &busy) && tries:
					note(i, asked{items: items, tries: true}, from, came{inWay: busy.Hold})
				case tries && strings.Contains(err.Error(), "no reply within"):
					// On a busy machine, the last reply may be late. Its grant is freed.
				default:
					fault(err)
				}
			}
			for len(held) > 0 {
				releaseOne()
			}
		})
	}
	running.Wait()
	return history, errs
}

// linearClients opens clients behind a network that is late by a few milliseconds, so that calls
// overlap.
func linearClients(t *testing.T, n int) []*locks.Client {
	server, ns := redistest.Shared(t), redistest.Namespace(t)
	var clients []*locks.Client
	for i := range n {
		p := server.Proxy(t)
		// Nothing is reserved for waiters: a refusal must be due to a hold.
		clients = append(clients, openClient(t, p.Client(t), locks.Options{
			// a young server grants at once
			Namespace: ns, Name: fmt.Sprint("c", i), ReserveAfter: time.Hour, Grace: -1,
		}))
		p.Set(redistest.Faults{RequestJitter: 3 * time.Millisecond, ReplyJitter: 3 * time.Millisecond})
	}
	if _, err := clients[0].Declare(t.Context(), "p", locks.PermitLimit{Permits: permitsInAll, Version: 1}); err != nil {
		t.Fatal(err)
	}
	return clients
}

// withoutGhosts removes refusals from a history that are due to something that no client had at the
// time: a copy of a request that was sent twice, because a slow machine kept the reply, and was
// applied again after its release. Such a copy is found and freed, but not at once.
func withoutGhosts(history []porcupine.Operation) (rest []porcupine.Operation) {
	type span struct{ from, to int64 }
	held := make(map[locks.HoldID]span)
	for _, call := range history {
		if id := locks.HoldID(call.Output.(came).id); id != "" {
			held[id] = span{call.Call, held[id].to}
		}
		if id := locks.HoldID(call.Input.(asked).release); id != "" {
			held[id] = span{held[id].from, call.Return}
		}
	}
	for _, call := range history {
		by := call.Output.(came).inWay
		if there, known := held[by]; by == "" || known && there.from <= call.Return && call.Call <= there.to {
			rest = append(rest, call)
		}
	}
	return rest
}

// linear reports whether an order of the calls exists in which each took effect at a moment between
// its begin and its end.
func linear(t *testing.T, history []porcupine.Operation) bool {
	t.Helper()
	switch result, _ := porcupine.CheckOperationsVerbose(lockModel, history, patient); result {
	case porcupine.Illegal:
		return false
	case porcupine.Unknown:
		t.Logf("no order of %d calls was found or ruled out in %s", len(history), patient)
	}
	return true
}

// write formats a history for people.
func write(history []porcupine.Operation) string {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, call := range history {
		fmt.Fprintf(&b, "\n  %9d to %9d us, client %d: %s", (call.Call-history[0].Call)/1000, (call.Return-history[0].Call)/1000,
			call.ClientId, lockModel.DescribeOperation(call.Input, call.Output))
	}
	return b.String()
}

// TestSmallHistoriesAreLinearizable makes two to four clients ask, wait, try and release at the
// same time, and looks for an order that explains their results.
func TestSmallHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 4; n++ {
		t.Run(fmt.Sprint(n, " clients"), func(t *testing.T) {
			t.Parallel()
			clients := linearClients(t, n)
			granted, refused, ghosts := 0, 0, 0
			for range 20 * locks.Soak() {
				seed := uint64(time.Now().UnixNano())
				history, errs := linearHistory(t, clients, seed, 8)
				if len(errs) > 0 {
					t.Fatalf("seed %d: %v", seed, errs)
				}
				real := withoutGhosts(history)
				ghosts += len(history) - len(real)
				if !linear(t, real) {
					t.Fatalf("seed %d: no order explains this history:%s", seed, write(history))
				}
				for _, call := range history {
					switch {
					case call.Input.(asked).release != "":
					case call.Output.(came).id == "":
						refused++
					default:
						granted++
					}
				}
			}
			t.Logf("%d requests granted, %d refused, %d of them because of a lock without a holder", granted, refused, ghosts)
			if ghosts > 2+refused/50 {
				t.Error("too many were refused because of a lock without a holder")
			}
			if granted == 0 || refused == 0 {
				t.Error("nothing was granted, or nothing refused: the test proves nothing")
			}
		})
	}
}

// TestLinearizabilityFindsFaults plants faults in the scripts, each of which must produce a history
// without an order.
func TestLinearizabilityFindsFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct{ name, old, new string }{
		{"an exclusive request is granted", "      by = 'x' .. sub(owner, 2)", "      by = mode ~= 'x' and 'x' .. sub(owner, 2) or nil"},
		{"every request is granted on the fast path", "if owners[i] then return false end", ""},
		{"every attempt is refused", "if not resource then\n  local token = S.seize", "if longest == '-1' then resource, owner = 'a', 'l' end\nif not resource then\n  local token = S.seize"},
		{"a permit comes back twice", "format('p%d:%d:%s', used - n, most, version)", "format('p%d:%d:%s', math.max(0, used - n - 1), most, version)"},
		{"readers keep readers out", "elseif kind == 's' and mode == 'x' then", "elseif kind == 's' then"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			clients := linearClients(t, 3)
			for _, c := range clients {
				locks.Plant(t, c, fault.old, fault.new)
			}
			for seed := range uint64(200) {
				if history, _ := linearHistory(t, clients, seed, 8); !linear(t, history) {
					return
				}
			}
			t.Error("every history has an order")
		})
	}
}
