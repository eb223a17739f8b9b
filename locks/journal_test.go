package locks_test

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/bootclock"
)

// stamp is now on a clock that all processes of this machine share, in ns.
func stamp() int64 {
	if runtime.GOOS == "linux" {
		return int64(bootclock.Now())
	}
	return time.Now().UnixNano()
}

// A claim is what one holder has of one resource, and a time in which it surely worked under it:
// From and To are readings of the clock after each of which the context was seen alive. So
// overlapping claims that exclude each other are a fault, however late a goroutine was run.
type claim struct {
	Who      int // the process
	N        int // its number in its process
	Resource string
	Mode     locks.Mode
	// of ModePermits; of ModeShared the most that may share it, 0 for any number
	Permits  int
	By       locks.HoldID   // the grant that it belongs to
	Under    []locks.HoldID // the grants that this one is nested in
	Token    locks.Token
	Since    int64 // when it was granted, ms by the server's clock
	Least    int64 // ms that it stays taken after Since
	From, To int64
}

func (c *claim) String() string {
	return fmt.Sprintf("process %d, %s %s by %s (token %s, under %v), at work from %s for %s", c.Who, c.Mode, c.Resource, c.By, c.Token, c.Under,
		time.Duration(c.From), time.Duration(c.To-c.From))
}

// related reports whether one claim is the other's own, or nested in it: then they do not exclude
// each other.
func (c *claim) related(other *claim) bool {
	return c.By == other.By || slices.Contains(c.Under, other.By) || slices.Contains(other.Under, c.By)
}

// excludes reports whether two claims to one resource must not overlap, numbers aside.
func (c *claim) excludes(other *claim) bool {
	return (c.Mode == locks.ModeExclusive || other.Mode == locks.ModeExclusive) && !c.related(other)
}

// A pause is a time in which a process was stopped. When it resumes, it may work for a moment under
// holds that it has lost.
type pause struct {
	who      int
	from, to int64
}

// graceAfterPause bounds that moment: 100 ms until the clocks are read, and a busy machine.
const graceAfterPause = int64(time.Second)

// A journal keeps the claims of many actors, and other faults. The journal of a process passes both
// on to its parent.
type journal struct {
	who    int
	out    io.Writer      // to the parent, nil without one
	limits map[string]int // the number of permits of each resource, or of its sharers

	mu     sync.Mutex
	claims []*claim
	faults []string
	pauses []pause
}

// entry is a message of a process to its parent.
type entry struct {
	Claim *claim `json:",omitempty"`
	Fault string `json:",omitempty"`
	Note  string `json:",omitempty"`
}

func (j *journal) tell(l entry) {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	_, _ = j.out.Write(append(text, '\n')) // a parent that has exited has killed this process
}

// fault records a fault.
func (j *journal) fault(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.faults = append(j.faults, fmt.Sprintf(format, args...)); j.out != nil {
		j.tell(entry{Fault: fmt.Sprintf(format, args...)})
	}
}

// add records a claim that begins and was seen alive after at.
func (j *journal) add(c *claim, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.Who, c.N, c.From, c.To = j.who, len(j.claims), at, at
	if j.claims = append(j.claims, c); j.out != nil {
		j.tell(entry{Claim: c})
	}
}

// began returns how many claims have begun.
func (j *journal) began() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.claims)
}

// seen records that a claim was seen alive after at.
func (j *journal) seen(c *claim, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if c.To = at; j.out != nil {
		j.tell(entry{Claim: c})
	}
}

// eased records that a claim can be shared from now on: it continues in another mode.
func (j *journal) eased(c *claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.Least = 0
	if j.out != nil && c.From != 0 {
		j.tell(entry{Claim: c})
	}
}

// adopt takes over the messages of a process.
func (j *journal) adopt(l entry, known map[int]*claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case l.Fault != "":
		j.faults = append(j.faults, l.Fault)
	case l.Claim == nil:
	case known[l.Claim.N] == nil:
		known[l.Claim.N] = l.Claim
		j.claims = append(j.claims, l.Claim)
	default:
		known[l.Claim.N].To, known[l.Claim.N].Least = l.Claim.To, l.Claim.Least
	}
}

// excused reports whether a claim may be at work at a moment although it is lost: its process was
// stopped meanwhile, and it is at work only for a moment afterward.
func (j *journal) excused(at int64, claims ...*claim) bool {
	for _, p := range j.pauses {
		for _, c := range claims {
			if c.Who == p.who && p.from <= at && at <= p.to+graceAfterPause && c.To <= p.to+graceAfterPause {
				return true
			}
		}
	}
	return false
}

// check returns the faults in the journal, and how many overlaps were excused.
func (j *journal) check() (faults []string, excused int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	faults = slices.Clone(j.faults)
	resources := make(map[string][]*claim)
	for _, c := range j.claims {
		resources[c.Resource] = append(resources[c.Resource], c)
	}
	for name, claims := range resources {
		slices.SortFunc(claims, func(a, b *claim) int { return int(a.From - b.From) })
		var at []*claim // the claims at work when the next one begins
		for i, c := range claims {
			at = slices.DeleteFunc(at, func(other *claim) bool { return other.To <= c.From })
			at = append(at, c)
			for _, other := range at[:len(at)-1] {
				switch {
				case !c.excludes(other):
				case j.excused(c.From, c, other):
					excused++
				default:
					faults = append(faults, fmt.Sprintf("%s is held twice:\n  %s\n  %s", name, other, c))
				}
			}
			if limit := j.limits[name]; limit > 0 && taken(at) > limit {
				if j.excused(c.From, at...) {
					excused++
				} else {
					faults = append(faults, fmt.Sprintf("%s: %d of %d are taken: %s", name, taken(at), limit, at))
				}
			}
			// In the order of the holds, not only of the grants: all begin in nearly that order, so
			// the last hundred suffice.
			for _, other := range claims[max(0, i-100):i] {
				if !c.excludes(other) || other.To > c.From || j.excused(c.From, c, other) {
					continue
				}
				if other.Token >= c.Token {
					faults = append(faults, fmt.Sprintf("%s: a token that does not grow:\n  %s\n  %s", name, other, c))
				}
				if c.Since < other.Since+other.Least {
					faults = append(faults, fmt.Sprintf("%s: granted %d ms after a grant that keeps it for %d ms:\n  %s\n  %s",
						name, c.Since-other.Since, other.Least, other, c))
				}
			}
		}
	}
	return faults, excused
}

// taken counts the permits, or the sharers, of claims that are at work at the same time.
func taken(at []*claim) (sum int) {
	most := make(map[locks.HoldID]int) // of one grant, for all its users
	for _, c := range at {
		n := 1
		if c.Mode == locks.ModePermits {
			n = c.Permits
		}
		most[c.By] = max(most[c.By], n)
	}
	for _, n := range most {
		sum += n
	}
	return sum
}

// verify fails the test for each fault in the journal, and logs how much was checked.
func (j *journal) verify(t *testing.T) {
	t.Helper()
	faults, excused := j.check()
	for i, fault := range faults {
		if i == 5 {
			t.Errorf("and %d more", len(faults)-i)
			break
		}
		t.Error(fault)
	}
	modes := make(map[locks.Mode]int)
	for _, c := range j.claims {
		modes[c.Mode]++
	}
	t.Logf("%d claims: %v; %d overlaps excused", len(j.claims), modes, excused)
	if len(j.claims) == 0 {
		t.Error("no lock was ever held: the test proves nothing")
	}
}

// TestJournalFindsFaults checks journals with one fault each, made by hand.
func TestJournalFindsFaults(t *testing.T) {
	t.Parallel()
	x := func(by string, token locks.Token, from, to int64) *claim {
		return &claim{Resource: "a", Mode: locks.ModeExclusive, By: locks.HoldID(by), Token: token, Since: from, From: from, To: to}
	}
	as := func(c *claim, mode locks.Mode, permits int) *claim {
		c.Mode, c.Permits = mode, permits
		return c
	}
	under := func(c *claim, ids ...locks.HoldID) *claim {
		c.Under = ids
		return c
	}
	least := x("h1", 1, 10, 20)
	least.Least = 100
	second := int64(time.Second)
	for _, test := range []struct {
		name   string
		claims []*claim
		pauses []pause
		want   string
	}{
		{"nothing", []*claim{x("h1", 1, 10, 20), x("h2", 2, 20, 30)}, nil, ""},
		{"two at a time", []*claim{x("h1", 1, 10, 20), x("h2", 2, 19, 30)}, nil, "held twice"},
		{"one inside the other", []*claim{x("h1", 1, 10, 90), x("h2", 2, 19, 30), x("h3", 3, 40, 50)}, nil, "held twice"},
		{"a reader beside a writer", []*claim{x("h1", 1, 10, 20), as(x("h2", 2, 15, 30), locks.ModeShared, 0)}, nil, "held twice"},
		{"readers", []*claim{as(x("h1", 2, 10, 20), locks.ModeShared, 0), as(x("h2", 1, 15, 30), locks.ModeShared, 0)}, nil, ""},
		{"an upgrade", []*claim{as(x("h1", 1, 10, 90), locks.ModeShared, 0), under(x("h2", 2, 19, 30), "h1")}, nil, ""},
		{"an upgrade beside another reader", []*claim{
			as(x("h1", 1, 10, 90), locks.ModeShared, 0), under(x("h2", 2, 19, 30), "h3"),
		}, nil, "held twice"},
		{"too many permits", []*claim{as(x("h1", 1, 10, 20), locks.ModePermits, 2), as(x("h2", 2, 15, 30), locks.ModePermits, 1)}, nil, "3 of 2"},
		{"permits counted on", []*claim{
			as(x("h1", 1, 10, 30), locks.ModePermits, 1), under(as(x("h2", 2, 15, 20), locks.ModePermits, 1), "h1"),
			as(x("h1", 1, 16, 19), locks.ModePermits, 1),
		}, nil, ""},
		{"an older token", []*claim{x("h1", 2, 10, 20), x("h2", 1, 20, 30)}, nil, "does not grow"},
		{"the same token", []*claim{x("h1", 1, 10, 20), as(x("h2", 1, 20, 30), locks.ModeShared, 0)}, nil, "does not grow"},
		{"freed too early", []*claim{least, x("h2", 2, 20, 30)}, nil, "keeps it for 100 ms"},
		{"a pause", []*claim{x("h1", 1, 10, 3*second), x("h2", 2, second, 9*second)}, []pause{{0, second / 2, 2*second + second/2}}, ""},
		{"work long after a pause", []*claim{x("h1", 1, 10, 5*second), x("h2", 2, second, 9*second)}, []pause{{0, second / 2, 2 * second}}, "held twice"},
		{"another one's pause", []*claim{x("h1", 1, 10, 2*second), x("h2", 2, second, 9*second)}, []pause{{1, second / 2, 2 * second}}, "held twice"},
	} {
		j := &journal{limits: map[string]int{}, claims: test.claims, pauses: test.pauses}
		if strings.Contains(test.name, "permits") {
			j.limits["a"] = 2
		}
		faults, _ := j.check()
		if got := strings.Join(faults, "; "); (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
