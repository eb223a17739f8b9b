package cmd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/scheduler/ledger"
)

// The messages of a soak: one job fails every second, others fail or are lost at times, and a
// webhook in this process receives the messages about them. It has faults of its own.
//
// In the end, the webhook has received exactly the ends that the ledger has. After a loss of data,
// one of these may be missing only if its message was still waiting when Redis lost it. And an end
// that only another worker had learned of may have been received under another ID, which names an
// earlier attempt or none.

const (
	hookFailed kind = "webhook replied with status 500"
	hookHung   kind = "webhook replied to nothing"
	hookClosed kind = "webhook refused connections"
)

// hookKinds are the faults of the webhook. They hit no worker.
var hookKinds = []kind{hookFailed, hookHung, hookClosed}

// hookFaults draws faults of the webhook, one at a time.
func hookFaults(total time.Duration, random *rand.Rand, between func(least, most time.Duration) time.Duration) (faults []fault) {
	least, most := 2*time.Second, 25*time.Second
	if total < time.Minute {
		least, most = total/8, total/5
	}
	var deck []kind
	for at := time.Second; ; at += between(most/5, most) {
		if len(deck) == 0 {
			deck = slices.Clone(hookKinds)
			random.Shuffle(len(deck), func(i, k int) { deck[i], deck[k] = deck[k], deck[i] })
		}
		f := fault{at: at, lasts: between(least, most), kind: deck[0]}
		if at += f.lasts; at > total {
			return faults
		}
		faults, deck = append(faults, f), deck[1:]
	}
}

// notifiedJobs are the jobs of a soak with the webhook as their target.
var notifiedJobs = []string{"alarm", "broken", "fragile", "once"}

// notes are the messages of a soak.
type notes struct {
	hook *receiver
	over func() // ends its present fault
}

// newNotes starts the webhook.
func newNotes(t *testing.T) notes {
	t.Helper()
	n := notes{hook: newReceiver(t)}
	if runtime.GOOS == "linux" {
		// No other program listens there, so the port stays free while connections are refused.
		n.hook.server.Close()
		n.hook.listen("127.9.9.9:0")
	}
	return n
}

// config declares the webhook as a target.
func (n *notes) config() string {
	return fmt.Sprintf("notify: {hook: {webhook: %q, secret_file: %q, on: [failed, lost]}}\n", n.hook.url, n.hook.key)
}

// begin makes a fault of the webhook happen.
func (n *notes) begin(kind kind) {
	switch kind {
	case hookFailed:
		n.hook.refuseAll(http.StatusInternalServerError)
		n.over = func() { n.hook.refuseAll(0) }
	case hookHung:
		n.over = n.hook.hang()
	case hookClosed:
		n.hook.server.CloseClientConnections()
		n.hook.server.Close()
		n.over = func() { n.hook.listen(strings.TrimPrefix(n.hook.url, "http://")) }
	}
}

// waiting returns the ids of the messages that wait to be sent.
func (s *soak) waiting() map[string]bool {
	s.t.Helper()
	members, err := s.connection().rdb.ZRange(s.t.Context(), "{lockstep}:mail", 0, -1).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	ids := make(map[string]bool)
	for _, member := range members {
		parts := strings.SplitN(member, "\x00", 4)
		id, _, _ := strings.Cut(parts[len(parts)-1], "\x1f")
		ids[id] = true
	}
	return ids
}

// toldEnd is an end that a target is told of.
type toldEnd struct {
	run string
	id  string // of its message
	// Redis lost it, and only a worker re-asserted it that had learned of it from the news
	heard bool
}

// endings returns the ends of notified jobs among some runs.
func endings(runs []runJSON) (ends []toldEnd) {
	for _, run := range runs {
		if !slices.Contains(notifiedJobs, run.Job) || run.State != "failed" && run.State != "lost" || strings.Contains(run.ID, "@..") {
			continue
		}
		one := toldEnd{run: run.ID, heard: textOf(run.Reason) == heardOf}
		if n := len(run.Attempts); n > 0 {
			one.id = run.ID + "." + run.Attempts[n-1].Token
		}
		ends = append(ends, one)
	}
	return ends
}

// notes proves that the webhook received exactly the ends in the ledger. got has how often it
// received each message.
func (c *checker) notes(h *history, got map[string]int) {
	known := make(map[string]bool) // messages of ends
	seen := make(map[string]bool)  // runs
	want := endings(h.runs)
	for _, run := range h.runs {
		seen[run.ID] = true
	}
	for _, loss := range h.losses {
		want = append(want, endings(loss.runs)...)
		for _, run := range loss.runs {
			seen[run.ID] = true
		}
	}
	for _, end := range want {
		waited := func(l loss) bool { return l.waiting[end.id] }
		if got[end.id] == 0 && !known[end.id] && !end.heard && !slices.ContainsFunc(h.losses, waited) {
			c.found("the webhook was not told of the end %s", end.id)
		}
		known[end.id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(got)) {
		if known[id] {
			continue
		}
		// Of a tick before a loss, another attempt may be named, or no worker may remember its run.
		run, _, _ := strings.Cut(id, ".")
		_, text, _ := strings.Cut(run, "@")
		tick, err := time.Parse(time.RFC3339, text)
		before := func(l loss) bool { return tick.Before(l.at) && (seen[run] || tick.After(l.at.Add(-30*time.Second))) }
		if err != nil || !slices.ContainsFunc(h.losses, before) {
			c.found("the webhook was told of %s, and the ledger has no such end", id)
		}
	}
}

// quiet ends the failures of those jobs that fail without any fault of the soak.
func (s *soak) quiet() {
	s.t.Helper()
	for _, job := range []string{"alarm", "broken"} {
		s.eventually(time.Minute, "the job "+job+" is paused", func() bool {
			s.tend()
			_, _, code := runTool(s.t, s.env, "job", "pause", job, "--reason", "the soak is over")
			return code == 0
		})
	}
}

// awaitNotes waits until all messages have been sent.
func (s *soak) awaitNotes() {
	s.t.Helper()
	conn := s.connection()
	s.eventually(time.Minute, "the runs of the paused jobs have ended", func() bool {
		s.tend()
		left, err := conn.ledger.CountOpen(s.t.Context(), []string{"alarm", "broken"})
		return err == nil && left["alarm"]+left["broken"] == 0
	})
	// A worker that was killed keeps a batch until its lease is over, and a request that failed is
	// repeated after a pause that may be as long as the fault of the webhook was. After a loss of
	// data, those of the last ten minutes are sent again.
	var mail []ledger.MailOf
	s.eventually(5*time.Minute, "all messages were sent", func() bool {
		s.tend()
		var err error
		mail, err = conn.ledger.Mail(s.t.Context(), []string{"hook"})
		return err == nil && mail[0].Waiting == 0
	})
	if mail[0].Unsent != 0 || mail[0].Dropped != 0 {
		s.t.Errorf("of the messages, %d could not be sent, and %d were not stored", mail[0].Unsent, mail[0].Dropped)
	}
}

// checkNotes compares what the webhook received with the ledger.
func (s *soak) checkNotes(h *history) {
	s.t.Helper()
	hook := s.notes.hook
	hook.mu.Lock()
	defer hook.mu.Unlock()
	c := new(checker)
	c.notes(h, hook.events)
	c.report(s.t)
	repeated, waited := 0, 0
	for _, n := range hook.events {
		repeated += n - 1
	}
	for _, loss := range h.losses {
		waited += len(loss.waiting)
	}
	ends := len(endings(new(checker).remembered(h).runs))
	s.t.Logf("the webhook received %d distinct events in %d requests, and %d of them again; the ledger has %d ends; %d messages waited when Redis lost its data",
		len(hook.events), len(hook.requests), repeated, ends, waited)
	if len(h.losses) == 0 && len(hook.events) != ends {
		s.t.Errorf("%d distinct events, want %d", len(hook.events), ends)
	}
	if ends < 5 {
		s.t.Errorf("only %d runs have failed or were lost", ends)
	}
}

// TestCheckerFindsPlantedFaultsOfMessages runs the checker on small histories, each with one fault.
func TestCheckerFindsPlantedFaultsOfMessages(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2027, 1, 1, 0, 0, second, 0, time.UTC) }
	id := func(second int) string { return "alarm@" + at(second).Format(time.RFC3339) }
	run := func(second int, state string, tokens ...string) runJSON {
		r := runJSON{ID: id(second), Job: "alarm", State: state, Created: at(second)}
		for i, token := range tokens {
			r.Attempts = append(r.Attempts, attemptJSON{Attempt: i + 1, Token: token})
		}
		return r
	}
	heard := run(3, "failed")
	reason := heardOf
	heard.Reason = &reason
	// Redis lost its data at 4 s: what was at 1 s waited to be sent, the end at 2 s was sent and
	// then forgotten, and that at 3 s was re-asserted by a worker that had only heard of it.
	good := func() (*history, map[string]int) {
		return &history{
			runs: []runJSON{heard, run(5, "failed", "50", "51"), run(6, "lost", "60"), run(7, "succeeded", "70")},
			losses: []loss{{
				at: at(4), waiting: map[string]bool{id(1) + ".10": true}, runs: []runJSON{run(1, "failed", "10"), run(2, "failed", "20"), run(3, "running", "30")},
			}},
		}, map[string]int{id(2) + ".20": 2, id(3) + ".30": 1, id(5) + ".51": 1, id(6) + ".60": 1}
	}
	for _, test := range []struct {
		name  string
		wrong func(h *history, got map[string]int)
		want  string // "": no problem
	}{
		{"nothing", func(*history, map[string]int) {}, ""},
		{"end without a message", func(_ *history, got map[string]int) { delete(got, id(5)+".51") }, "was not told of the end " + id(5) + ".51"},
		{"lost run without a message", func(_ *history, got map[string]int) { delete(got, id(6)+".60") }, "was not told of"},
		{"message before a loss that did not wait", func(_ *history, got map[string]int) { delete(got, id(2)+".20") }, "was not told of"},
		{"message of a success", func(_ *history, got map[string]int) { got[id(7)+".70"] = 1 }, "the ledger has no such end"},
		{"message of an earlier attempt", func(_ *history, got map[string]int) { got[id(5)+".50"] = 1 }, "the ledger has no such end"},
		{"message of no run", func(_ *history, got map[string]int) { got["alarm@2027-01-01T00:00:08Z.80"] = 1 }, "the ledger has no such end"},
		{"message of no tick", func(_ *history, got map[string]int) { got["config.w.x"] = 1 }, "the ledger has no such end"},
		{"message of a run that no worker remembers", func(_ *history, got map[string]int) { got["alarm@2026-12-31T23:59:59Z.1"] = 1 }, ""},
		{"message of a run that is long over", func(_ *history, got map[string]int) { got["alarm@2026-12-31T23:59:09Z.1"] = 1 }, "the ledger has no such end"},
		{"no loss explains it", func(h *history, _ map[string]int) { h.losses = nil }, "the ledger has no such end"},
	} {
		h, got := good()
		test.wrong(h, got)
		c := new(checker)
		c.notes(h, got)
		found := strings.Join(c.problems, "\n")
		if test.want == "" && found != "" || !strings.Contains(found, test.want) {
			t.Errorf("%s: found %q, want %q", test.name, found, test.want)
		}
	}
}
