package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
)

var update = flag.Bool("update", false, "write the screens in testdata")

func TestMain(m *testing.M) { redistest.Main(m) }

// fleet is a [Fleet] of a fake ledger. Its acts do nothing but note what was asked for.
type fleet struct {
	*fakes.Fake
	reader *admin.Reader
	done   []string // "verb object: reason"
	refuse string   // the error of each act
	asked  int      // calls of followers
}

func newFleet(f *fakes.Fake) *fleet { return &fleet{Fake: f, reader: admin.ReaderOf(f, f)} }

func (f *fleet) See(ctx context.Context) (*Seen, error) {
	snapshot, err := f.reader.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	overview, err := f.reader.Overview(ctx, snapshot)
	return &Seen{Snapshot: snapshot, Overview: overview}, err
}

func (f *fleet) Run(ctx context.Context, id jobs.RunID) (*Detail, error) {
	run, output, err := f.reader.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	snapshot, err := f.reader.Snapshot(ctx)
	return &Detail{At: fakes.Noon, Run: run, Output: output, Snapshot: snapshot}, err
}

func (f *fleet) Follow(id jobs.RunID) Follower { return &follower{f.reader.Follow(id), &f.asked} }

// follower is a [Follower] that counts its calls.
type follower struct {
	*admin.Follower
	asked *int
}

func (f *follower) Next(ctx context.Context) ([]admin.FollowEvent, error) {
	*f.asked++
	return f.Follower.Next(ctx)
}

func (f *fleet) Prepare(_ context.Context, verb Verb, on Target) (*Act, error) {
	return &Act{
		Effect: "this is what " + string(verb) + " does to " + on.object(verb),
		Asks:   verb == Cancel || verb == Release || verb == Force || verb == Drain,
		Reason: verb == Release || verb == Force,
		Do: func(_ context.Context, why string) (string, error) {
			if f.refuse != "" {
				return "", errors.New(f.refuse)
			}
			f.done = append(f.done, fmt.Sprintf("%s %s: %s", verb, on.object(verb), why))
			return string(verb) + " is done", nil
		},
	}, nil
}

// terminal is a model with a clock of its own, whose commands run when they are made.
type terminal struct {
	*model
	t     *testing.T
	clock time.Time // local
	left  bool      // the user has left
	other []tea.Msg // what commands of bubbletea sent
}

func newTerminal(t *testing.T, f Fleet, cells, rows int) *terminal {
	t.Helper()
	o := Options{Interval: time.Second, Where: "redis://127.0.0.1:6379/0 (namespace lockstep)"}
	term := &terminal{model: newModel(f, o, background(t.Context())), t: t, clock: fakes.Noon}
	term.model.tick = func() tea.Cmd { return nil }
	term.run(term.Init())
	term.resize(cells, rows)
	return term
}

// run runs a command and those that follow from it.
func (term *terminal) run(cmd tea.Cmd) {
	if cmd != nil {
		term.send(cmd())
	}
}

func (term *terminal) send(msg tea.Msg) {
	switch one := msg.(type) {
	case tea.BatchMsg:
		for _, cmd := range one {
			term.run(cmd)
		}
		return
	case tea.QuitMsg:
		term.left = true
		return
	case seenMsg:
		one.took = took{term.clock, term.clock}
		msg = one
	case detailMsg:
		one.took = took{term.clock, term.clock}
		msg = one
	case followedMsg:
		one.took = took{term.clock, term.clock}
		msg = one
	case nil, tickMsg, preparedMsg, doneMsg, tea.WindowSizeMsg, tea.KeyPressMsg, tea.PasteMsg:
	default:
		term.other = append(term.other, msg)
		return
	}
	_, cmd := term.Update(msg)
	term.run(cmd)
}

func (term *terminal) resize(cells, rows int) {
	term.send(tea.WindowSizeMsg{Width: cells, Height: rows})
}

// wait lets time pass, one tick after the other.
func (term *terminal) wait(seconds int) {
	for range seconds {
		term.clock = term.clock.Add(time.Second)
		term.send(tickMsg(term.clock))
	}
}

// press presses keys, by the names that bubbletea gives them.
func (term *terminal) press(keys ...string) {
	term.t.Helper()
	for _, key := range keys {
		msg := keyOf(key)
		if got := msg.String(); got != key {
			term.t.Fatalf("the key %q is called %q", key, got)
		}
		term.send(msg)
	}
}

// types types a text.
func (term *terminal) types(text string) {
	for _, r := range text {
		term.send(tea.KeyPressMsg{Code: r, Text: string(r)})
	}
}

func keyOf(name string) tea.KeyPressMsg {
	special := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "backspace": tea.KeyBackspace, "up": tea.KeyUp,
		"down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight, "home": tea.KeyHome, "end": tea.KeyEnd,
		"pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown,
	}
	var msg tea.KeyPressMsg
	if rest, is := strings.CutPrefix(name, "ctrl+"); is {
		name, msg.Mod = rest, tea.ModCtrl
	} else if rest, is := strings.CutPrefix(name, "shift+"); is {
		name, msg.Mod = rest, tea.ModShift
	}
	switch code, is := special[name]; {
	case is:
		msg.Code = code
	case name == "space":
		msg.Code, msg.Text = tea.KeySpace, " "
	default:
		msg.Code = []rune(name)[0]
		if msg.Mod == 0 {
			msg.Text = name
		}
	}
	return msg
}

// screen returns the screen, and checks that it fits the terminal.
func (term *terminal) screen() string {
	term.t.Helper()
	content := term.View().Content
	lines := strings.Split(content, "\n")
	if term.rows >= leastRows && len(lines) != term.rows {
		term.t.Errorf("the screen has %d lines, want %d:\n%s", len(lines), term.rows, content)
	}
	for _, line := range lines {
		if n := width(line); n > term.cells {
			term.t.Errorf("a line has %d columns, want at most %d: %s", n, term.cells, line)
		}
	}
	return content
}

// has checks that the screen has a text.
func (term *terminal) has(texts ...string) {
	term.t.Helper()
	screen := term.screen()
	for _, text := range texts {
		if !strings.Contains(screen, text) {
			term.t.Errorf("the screen lacks %q:\n%s", text, screen)
		}
	}
}

func (term *terminal) lacks(text string) {
	term.t.Helper()
	if screen := term.screen(); strings.Contains(screen, text) {
		term.t.Errorf("the screen has %q:\n%s", text, screen)
	}
}

// golden compares the screen with a file in testdata.
func (term *terminal) golden(name string) {
	term.t.Helper()
	path, got := filepath.Join("testdata", name+".txt"), term.screen()+"\n"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			term.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		term.t.Fatal(err)
	}
	if got != string(want) {
		term.t.Errorf("%s: got\n%s\nwant\n%s\n(go test ./cmd/top -update writes it)", path, got, want)
	}
}
