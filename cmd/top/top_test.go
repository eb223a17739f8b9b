package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

const running = "settle-bills#01K9B7ZK3M5W7QF"

func TestOverviewFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, size := range []struct{ cells, rows int }{{80, 24}, {200, 50}, {40, 24}, {80, 12}} {
		term := newTerminal(t, newFleet(fakes.Fleet()), size.cells, size.rows)
		term.golden(fmt.Sprintf("%dx%d", size.cells, size.rows))
	}
	term := newTerminal(t, newFleet(&fakes.Fake{Listing: locks.Listing{At: fakes.Noon}}), 80, 24)
	term.golden("empty")
	f := fakes.Fleet()
	for i := range 12 {
		one := *f.Open[0]
		one.ID, one.State = jobs.RunID(fmt.Sprintf("settle-bills#more-%d", i)), ledger.StateDue
		f.Open = append(f.Open, &one)
	}
	term = newTerminal(t, newFleet(f), 80, 24)
	term.has("14 not running", "NOT RUNNING 10 of 14")
	term = newTerminal(t, newFleet(fakes.Fleet()), 20, 5)
	term.has("too small")
	term.resize(80, 24)
	term.has("WORKERS 3")
}

func TestRunShowsItsAttemptsItsReasonAndItsOutput(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Outputs["nightly-backup@2026-11-21T01:00:00Z"] = "\x1b[32mdumped\x1b[0m 1\n\x1b]0;title\a2\n"
	term := newTerminal(t, newFleet(f), 80, 30)
	term.press("2", "enter")
	term.golden("run")
	term.press("esc")
	term.has("WORKERS 3")
	term.press("4", "down", "enter")
	term.has("waits for", "wants     bill:1001 ", "behind    "+running, "ATTEMPTS 0", "nothing is printed yet")

	f.Open = nil // and its history has dropped it
	f.Ended = nil
	term.wait(1)
	term.has("There is no such run (any more)")
	term.press("esc")
	term.has("WORKERS 3")
}

// prints makes a running run pass on a part of its output.
func prints(f *fakes.Fake, id jobs.RunID, attempt int, text string) {
	live := f.Follows[id]
	if live == nil || live.Attempt != attempt {
		live = &ledger.Followed{State: ledger.StateRunning, Attempt: attempt, Worker: "web-2.p91qd3f7", Passing: true}
		f.Follows = map[jobs.RunID]*ledger.Followed{id: live}
	}
	from := int64(0)
	if n := len(live.Printed); n > 0 {
		from = live.Printed[n-1].Upto
	}
	live.Printed = append(live.Printed, ledger.Printed{Attempt: attempt, From: from, Upto: from + int64(len(text)), Text: text})
}

func TestRunShowsItsOutputWhileItIsPrinted(t *testing.T) {
	t.Parallel()
	for _, size := range []struct{ cells, rows int }{{80, 24}, {40, 24}} {
		f := newFleet(fakes.Fleet())
		prints(f.Fake, running, 1, "bill 1001 is opened\n\x1b[32mbill")
		term := newTerminal(t, f, size.cells, size.rows)
		term.wait(3)
		if f.asked != 0 {
			t.Error("a run is followed although no screen shows it")
		}
		term.press("2", "down", "enter", "G")
		term.has("OUTPUT as it is printed", "── attempt 1 runs on web-2.p91qd3f7", "bill 1001 is opened")
		if size.cells == 80 {
			term.golden("follow")
		}
		// A part may end within a sequence or a character.
		for _, text := range []string{" 1002\x1b", "[0m is opened \xe2", "\x9c\x93\n\x1b]52;c;ZXZpbA==\a\x1b[2Jend"} {
			prints(f.Fake, running, 1, text)
			term.wait(1)
		}
		term.has("bill 1002 is opened ✓", " ]52;c;ZXZpbA==  [2Jend")
		if strings.ContainsAny(term.screen(), "\x1b\a") {
			t.Errorf("output reaches the terminal: %q", term.screen())
		}

		// The screen stays at the end, until the user leaves it.
		for i := range 100 {
			prints(f.Fake, running, 1, fmt.Sprintf("\nline %d", i))
		}
		term.wait(1)
		term.has("line 99")
		term.lacks("state ")
		term.press("up")
		prints(f.Fake, running, 1, "\nline 100")
		term.wait(1)
		term.lacks("line 100")
		term.press("g")
		term.has("state     ● running")

		asked := f.asked
		term.following = true // a call is in progress
		if term.wait(3); f.asked != asked {
			t.Error("a second call began during the first one")
		}
		term.following = false
		f.Fail("i/o timeout")
		term.wait(1)
		term.press("G")
		term.has("── the output cannot be followed: i/o")
		f.Recover()
		term.wait(1)
		term.lacks("cannot be followed")
		term.has("line 100")

		asked = f.asked
		term.press("esc")
		if term.wait(5); f.asked != asked {
			t.Error("the run is followed although its screen is closed")
		}
	}
}

func TestOutputIsFollowedFromAttemptToAttemptUntilTheEnd(t *testing.T) {
	t.Parallel()
	f := newFleet(fakes.Fleet())
	prints(f.Fake, running, 1, "first\n")
	term := newTerminal(t, f, 80, 30)
	term.press("2", "down", "enter")
	term.has("first")
	record := f.Open[1]
	end := func(i int, outcome string) {
		record.Attempts[i].Finished, record.Attempts[i].Outcome = fakes.Noon, outcome
	}
	end(0, "crashed")
	record.Attempts = append(record.Attempts, ledger.AttemptRecord{Number: 2, Worker: "web-1.x7k2m9qa", Started: fakes.Noon})
	prints(f.Fake, running, 2, "second\n")
	term.wait(1)
	term.has("first", "── attempt 1 has ended: crashed", "── attempt 2 runs on web-1.x7k2m9qa", "second")

	end(1, "succeeded")
	record.State, record.Finished = ledger.StateSucceeded, fakes.Noon
	f.Follows[running].State, f.Follows[running].Worker = ledger.StateSucceeded, ""
	term.wait(2)
	term.has("── attempt 2 has ended: succeeded", "── the run has ended: succeeded", "first", "second")
	term.lacks("as it is printed")
	asked := f.asked
	if term.wait(5); f.asked != asked {
		t.Error("a run that has ended is followed")
	}

	record.State, record.Finished = ledger.StateDue, time.Time{} // it was retried
	f.Follows = nil
	term.wait(2)
	term.has("OUTPUT as it is printed")
	if f.asked == asked {
		t.Error("a run that was retried is not followed")
	}

	term.press("esc")
	asked = f.asked
	term.press("5", "enter")
	term.wait(3)
	term.has("state     ✓ succeeded", "dumped")
	term.lacks("as it is printed")
	if f.asked != asked {
		t.Error("a run that had ended before is followed")
	}
}

func TestATranscriptIsBounded(t *testing.T) {
	t.Parallel()
	f := newFleet(fakes.Fleet())
	term := newTerminal(t, f, 80, 24)
	chunk := strings.Repeat(strings.Repeat("x", 63)+"\n", 2048)
	for i := range 12 {
		prints(f.Fake, running, 1, fmt.Sprintf("chunk %d\n%s", i, chunk))
	}
	term.press("2", "down", "enter", "G")
	kept := &term.model.run.printed
	sum := 0
	for _, one := range kept.parts {
		sum += len(one.text)
	}
	if sum != kept.bytes || sum > mostOutput || sum < mostOutput-len(chunk) {
		t.Errorf("%d bytes are kept, and counted as %d, want the last %d", sum, kept.bytes, mostOutput)
	}
	if last := kept.parts[len(kept.parts)-1].text; !strings.Contains(last, "chunk 11\n") || strings.Contains(last, "chunk 9\n") {
		t.Errorf("the transcript begins with %.100q", last)
	}
	if !slices.ContainsFunc(term.model.run.lines, func(line string) bool { return strings.Contains(line, "bytes before this are not shown") }) {
		t.Error("the screen does not say that output is missing")
	}
	var notes transcript
	for i := range 100_000 {
		notes.add(admin.FollowEvent{Kind: admin.FollowAttempt, Attempt: i, State: "crashed"})
	}
	if notes.bytes > mostOutput || len(notes.parts) > mostOutput/10 {
		t.Errorf("%d notes with %d bytes are kept", len(notes.parts), notes.bytes)
	}
}

func TestTextsOfOthersOnlyPrint(t *testing.T) {
	t.Parallel()
	evil := "\x1b]52;c;ZXZpbA==\a\x1b[2J\x1b[31m\u009b31m\u202e\u2066\u200d\ufeff\r\n\t\x00\xff" + strings.Repeat("\u0301", 300) + "名前🧑‍💻"
	f := fakes.Fleet()
	for _, record := range slices.Concat(f.Open, f.Ended["nightly-backup"]) {
		record.Reason, record.Args = evil, []byte(`{"a":"`+evil+`"}`)
		for i := range record.Attempts {
			record.Attempts[i].Error = evil + "\n" + evil
		}
		f.Outputs[record.ID] = strings.Repeat(evil+"\n", 10)
	}
	for i := range f.Listing.Holds {
		f.Listing.Holds[i].Names = []string{evil, evil + "2"}
	}
	f.Listing.Holds[2].Info = []byte(`{"command":"\u001b]0;x\u0007\u202e"}`)
	f.Listing.Waits[1].Info = []byte(`{"command":"\u001b]0;x\u0007\u202e"}`)
	f.Live[0].Card = []byte(strings.ReplaceAll(fakes.Web2Card, "web-2", `\u001b[2J\u202e`))
	f.Registered[0].Paused = evil
	f.SetAside = []ledger.Aside{{Shelf: ledger.Shelf{Queue: evil}, Runs: 2}}
	fleet := newFleet(f)
	fleet.refuse = evil
	for _, cells := range []int{40, 80, 200} {
		term := newTerminal(t, fleet, cells, 30)
		check := func() {
			t.Helper()
			for _, r := range term.screen() {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Fatalf("the screen has the character %U:\n%q", r, term.screen())
				}
			}
		}
		for _, section := range []string{"1", "2", "3", "4", "5", "6"} {
			term.press(section, "z")
			check()
			term.press("enter")
			check()
			term.press("end")
			check()
			term.press("esc", "c")
			check()
			term.types("why")
			term.send(tea.PasteMsg{Content: evil})
			term.press("enter", "y")
			check()
			term.press("esc", "z", "/")
			term.send(tea.PasteMsg{Content: evil})
			check()
			term.press("esc", "esc")
		}
	}
	seen, err := fleet.See(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range Tables(seen) {
		for _, text := range append(slices.Concat(table.Rows...), append(table.Titles, table.None)...) {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("a table has the text %q", text)
			}
		}
	}
	for _, alarm := range Alarms(seen.Overview) {
		if strings.ContainsFunc(alarm, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("an alarm has the text %q", alarm)
		}
	}
}

// manyHolds returns a fleet with n holds of one worker.
func manyHolds(n int) *fleet {
	f := fakes.Fleet()
	f.Listing.Holds = nil
	for i := range n {
		id := jobs.RunID(fmt.Sprintf("settle-bills#%05d", i))
		f.Listing.Holds = append(f.Listing.Holds, locks.HoldRecord{
			ID: locks.HoldID(fmt.Sprintf("web-1.x7k2m9qa.%d", i)), Session: "web-1.x7k2m9qa", Token: locks.Token(i + 1),
			Since: fakes.Noon.Add(-time.Duration(n-i) * time.Second), LeaseLeft: time.Second,
			Info:  []byte(`{"job":"settle-bills","run":"` + string(id) + `"}`),
			Names: []string{fmt.Sprintf("bill:%05d", i), jobs.RunResource(id)},
		})
	}
	return newFleet(f)
}

func TestAFrameCostsTheSameWithTenThousandHolds(t *testing.T) {
	few, many := newTerminal(t, manyHolds(100), 80, 24), newTerminal(t, manyHolds(10_000), 80, 24)
	allocs := func(term *terminal) float64 {
		term.press("2", "end")
		return testing.AllocsPerRun(10, func() { _ = term.View() })
	}
	if a, b := allocs(few), allocs(many); b > 1.2*a+100 {
		t.Errorf("a frame allocates %.0f times with 100 holds and %.0f times with 10,000", a, b)
	}
	many.has("HOLDS 10000", "> settle-bills#09999")
	many.press("home")
	many.has("> settle-bills#00000")
	many.press("/")
	many.types("bill:00777")
	many.press("enter")
	many.has("HOLDS 1/10000", "settle-bills#00777")
}

func TestEveryListedKeyWorks(t *testing.T) {
	t.Parallel()
	help := strings.Join(helpLines(200), "\n")
	for _, b := range bindings() {
		if b.help == "" || !strings.Contains(help, b.help) || !strings.Contains(help, strings.Join(b.keys, " ")) {
			t.Errorf("the help lacks %q: %s", b.keys, b.help)
		}
		for _, at := range []place{overview, runPage, helpPage} {
			if !b.where.includes(at) {
				continue
			}
			for _, key := range b.keys {
				term := newTerminal(t, manyHolds(100), 80, 24)
				// in the middle of something, so that each key has an effect
				term.press("2", "/")
				term.types("settle")
				term.press("enter", "pgdown", "pgdown")
				switch {
				case b.help == "retry the run":
					term.press("esc", "5")
				case b.help == "drain the worker":
					term.press("esc", "1")
				case key == "2":
					term.press("1")
				}
				if at == runPage {
					term.press("enter")
					var output strings.Builder
					for i := range 100 {
						fmt.Fprintln(&output, "line", i)
					}
					term.model.run.take(detailMsg{
						took:   took{term.clock, term.clock},
						detail: &Detail{At: fakes.Noon, Run: mustRun(t), Output: output.String()},
					})
					term.send(tickMsg(term.clock)) // too early for a read
					term.press("pgdown", "pgdown")
					if b.help == "retry the run" {
						term.model.run.detail.Run.State = ledger.StateFailed
					}
				}
				if at == helpPage {
					term.resize(80, 12)
					term.press("?", "down", "down")
				}
				before, reads := term.screen(), fleetOf(term).ReadCount.Load()
				term.press(key)
				if after := term.screen(); after == before && !term.left && len(term.other) == 0 && fleetOf(term).ReadCount.Load() == reads {
					t.Errorf("%q does nothing at %d:\n%s", key, at, after)
				}
			}
		}
	}
	term := newTerminal(t, newFleet(fakes.Fleet()), 80, 40)
	term.press("?")
	term.golden("help")
}

func fleetOf(term *terminal) *fleet { return term.model.fleet.(*fleet) }

// mustRun reads a running run.
func mustRun(t *testing.T) *admin.Run {
	t.Helper()
	detail, err := newFleet(fakes.Fleet()).Run(t.Context(), running)
	if err != nil {
		t.Fatal(err)
	}
	return detail.Run
}

func TestFilterAppliesToAllTables(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, newFleet(fakes.Fleet()), 120, 40)
	term.press("/")
	term.types("BILL:1003 she")
	term.has("HOLDS 1/4", "./settle.sh --all", "WORKERS 0/3  none matches the filter", "/BILL:1003 she")
	term.press("backspace", "ctrl+w")
	term.types("zzz")
	term.has("HOLDS 0/4")
	term.press("ctrl+u")
	term.has("HOLDS 4")
	term.types("web-1")
	term.press("enter")
	term.has("filter: web-1", "WORKERS 2/3") // the third one has the same host
	term.press("esc")
	term.has("WORKERS 3")
	term.lacks("filter:")
	term.press("1", "enter")
	term.has("filter: web-1.x7k2m9qa")
}

func TestSortsByEachColumn(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, newFleet(fakes.Fleet()), 200, 50)
	order := func() string {
		var names []string
		for line := range strings.Lines(term.screen()) {
			if fields := strings.Fields(strings.TrimLeft(line, "> ")); len(fields) > 1 && strings.HasPrefix(fields[0], "web-") {
				names = append(names, fields[0][:5])
			}
		}
		return strings.Join(names[:min(3, len(names))], " ")
	}
	if got := order(); got != "web-1 web-2 web-3" {
		t.Errorf("unsorted: %s", got)
	}
	term.press("S")
	if got := order(); got != "web-3 web-2 web-1" {
		t.Errorf("reversed: %s", got)
	}
	term.press("S", "s", "s", "s")
	term.has("sorted by busy", "BUSY ↑")
	if got := order(); got != "web-3 web-1 web-2" {
		t.Errorf("by busy slots: %s", got)
	}
	for i := range term.sections {
		term.focus = i
		for range 12 {
			term.press("s")
			term.screen()
		}
	}
}

func TestSelectionStaysOnItsRow(t *testing.T) {
	t.Parallel()
	f := manyHolds(100)
	term := newTerminal(t, f, 80, 24)
	term.press("2", "pgdown", "pgdown")
	at := term.target().Run
	f.Listing.Holds = f.Listing.Holds[3:]
	term.wait(1)
	if got := term.target().Run; got != at {
		t.Errorf("%s is selected after three rows before it have ended, want %s", got, at)
	}
	term.has("> " + string(at))
	f.Listing.Holds = f.Listing.Holds[:2]
	term.wait(1)
	if term.target().Run == "" {
		t.Error("no row is selected after the selected one has ended")
	}
	f.Listing.Holds = nil
	term.wait(1)
	if got := term.target(); got.Run != "" {
		t.Errorf("%+v is selected in an empty table", got)
	}
	term.press("down", "enter", "x")
	term.has("select a hold")
}

func TestOutageKeepsTheLastData(t *testing.T) {
	t.Parallel()
	f := newFleet(fakes.Fleet())
	f.Fail("dial tcp 127.0.0.1:6379: connection refused")
	term := newTerminal(t, f, 120, 24)
	term.has("✗ Redis cannot be read: dial tcp 127.0.0.1:6379: connection refused.", "Nothing has been read")
	f.Recover()
	term.wait(1)
	term.has("WORKERS 3")
	term.lacks("cannot be read")
	f.Fail("i/o timeout")
	term.wait(12)
	term.has("✗ Redis cannot be read: i/o timeout. The data below is 12s old.", "12s ago", "WORKERS 3")
	term.press("2", "enter")
	term.has("✗ Redis cannot be read", "Reading the run")
	f.Recover()
	term.wait(1)
	term.has("state     ● running")
	term.press("esc")
	term.lacks("cannot be read")
}

func TestOneReadAtATime(t *testing.T) {
	t.Parallel()
	f := newFleet(fakes.Fleet())
	term := newTerminal(t, f, 80, 24)
	reads := func() int64 { return f.ReadCount.Swap(0) }
	reads()
	term.wait(1)
	once := reads()
	if once == 0 {
		t.Fatal("nothing is read after a second")
	}
	if term.wait(4); reads() != 4*once {
		t.Error("not one read a second")
	}
	term.o.Interval = 3 * time.Second
	term.wait(1)
	reads()
	if term.wait(6); reads() != 2*once {
		t.Error("not one read every three seconds")
	}

	// A read in progress.
	term.reading = true
	if term.wait(5); reads() != 0 {
		t.Error("a second read began during the first one")
	}
	// It took two seconds, so the next one begins ten seconds after it did.
	began := term.clock.Add(-2 * time.Second)
	term.Update(seenMsg{took: took{began, term.clock}, err: errors.New("slow")})
	if term.wait(7); reads() != 0 {
		t.Error("slow reads follow each other too soon")
	}
	if term.wait(1); reads() == 0 {
		t.Error("no read follows a slow one")
	}
	// A read of what the screen no longer shows.
	term.press("2", "enter")
	term.reading = true
	term.press("esc")
	if _, cmd := term.Update(detailMsg{took: took{term.clock, term.clock}, err: ledger.ErrUnknown}); cmd == nil {
		t.Error("the overview is not read as soon as the read of the run has ended")
	}
}

func TestActAsksWhatItsCommandAsks(t *testing.T) {
	t.Parallel()
	f := newFleet(fakes.Fleet())
	term := newTerminal(t, f, 80, 24)
	done := func(want string) {
		t.Helper()
		if got := strings.Join(f.done, "; "); got != want {
			t.Errorf("done: %q, want %q", got, want)
		}
		f.done = nil
	}

	// A release asks, and needs a reason.
	term.press("2", "x")
	term.has("release job:nightly-backup", "this is what release does to job:nightly-backup.", "Reason: ")
	term.press("enter")
	term.has("this needs a reason")
	term.types("stuck")
	term.golden("dialog")
	term.press("enter")
	term.has("Continue? [y/N]")
	done("")
	term.press("n")
	term.has("not confirmed; nothing was done")
	term.press("X")
	term.types("q y") // letters of a reason are no keys
	term.press("enter", "y")
	done("release by force job:nightly-backup: q y")
	term.has("✓ release by force is done")

	// A cancellation asks, and needs no reason.
	term.press("c", "enter", "enter")
	term.has("nothing was done")
	term.press("c", "enter", "y")
	done("cancel nightly-backup@2026-11-21T01:00:00Z: ")

	// A retry does not ask.
	term.press("5", "r", "enter")
	done("retry nightly-backup@2026-11-20T01:00:00Z: ")
	term.press("c")
	term.has("select a run that has not ended")

	// Several things can be paused.
	term.press("p")
	term.has("1  pause job nightly-backup", "2  pause queue default")
	term.press("2", "esc")
	term.has("nothing was done")
	term.press("u", "2")
	term.types("now")
	term.press("enter")
	done("resume queue default: now")

	term.press("1", "d", "enter", "y")
	done("drain web-1.x7k2m9qa: ")
	term.press("r")
	term.has("select a run that has ended")

	// From the page of a run.
	term.press("2", "down", "enter", "x")
	term.has("release bill:1001")
	term.press("esc")
	f.refuse = "refused: it has ended (succeeded)"
	term.press("c", "enter", "y")
	term.has("✗ cancel ", "refused: it has ended (succeeded)")
	done("")

	// A result arrives after the user has left the question.
	term.press("c", "enter")
	cmd := term.dialog.press(term.model, "y", "y")
	term.press("esc")
	term.has("sent, its result follows")
	f.refuse = ""
	term.run(cmd)
	term.has("cancel is done")
	if term.left {
		t.Error("a key of a dialog ended the program")
	}
	term.press("c", "ctrl+c")
	if !term.left {
		t.Error("Ctrl-C does not leave")
	}
}

func TestColorsCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, newFleet(fakes.Fleet()), 80, 24)
	without := term.screen()
	if strings.Contains(without, "\x1b") {
		t.Errorf("%q", without)
	}
	term.o.Colors = true
	with := term.screen()
	if !strings.Contains(with, "\x1b[33m↓ draining") || !strings.Contains(with, "\x1b[7m> web-1") {
		t.Errorf("no colors: %q", with)
	}
	var trimmed []string
	for line := range strings.Lines(plain(with)) {
		trimmed = append(trimmed, strings.TrimRight(line, " \n"))
	}
	if got := strings.Join(trimmed, "\n"); got != without {
		t.Errorf("colors change the text: got\n%s\nwant\n%s", got, without)
	}
}

func TestLongNamesAreCutByTheirWidth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		cells int
		want  string
	}{
		{"bill:1001", 9, "bill:1001"},
		{"bill:1001", 8, "bill:10…"},
		{"名前:1001", 6, "名前:…"},
		{"名前:1001", 4, "名…"},
		{"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"},
		{"a\tb\nc", 5, "a b c"},
		{"\x1b[1;31mred\x1b[m", 9, "red"},
		{"\x1b[Kx", 9, " [Kx"},
		{"\xff", 9, "\ufffd"},
	} {
		if got := cell(c.text, c.cells); got != c.want {
			t.Errorf("%q in %d cells is %q, want %q", c.text, c.cells, got, c.want)
		}
	}
	if got := cell(strings.Repeat("\u0301", 10_000), 10); len(got) > 1000 {
		t.Errorf("10,000 marks become %d bytes", len(got))
	}
}

func TestTheUserLeavesWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	msg := background(ctx)(time.Minute, func(ctx context.Context) tea.Msg { return ctx.Err() })()
	if err, is := msg.(error); !is || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that reads end with the context", msg)
	}
}
