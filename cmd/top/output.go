package top

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// mostOutput is how much of an output is kept and shown, in bytes. The rest is in front of it.
const mostOutput = 256 << 10

// transcript is what a follower has reported of a run: the end of it.
type transcript struct {
	parts   []passage
	bytes   int // of the parts, at most mostOutput
	dropped int // bytes of output in front of them
	output  bool
}

// passage is a text in a transcript: output, or a note about the attempts that print it.
type passage struct {
	note bool
	text string
}

// add takes an event. The output of an attempt arrives in parts, which may end within a character
// or a sequence for terminals, so they are joined before they are cleaned.
func (t *transcript) add(e admin.FollowEvent) {
	one := passage{note: true}
	switch e.Kind {
	case admin.FollowOutput:
		one = passage{text: e.Text}
	case admin.FollowNote:
		one.text = e.Text
	case admin.FollowAttempt:
		one.text = fmt.Sprintf("attempt %d has ended: %s", e.Attempt, e.State)
		if e.State == string(ledger.StateRunning) {
			one.text = fmt.Sprintf("attempt %d runs on %s", e.Attempt, e.Worker)
		}
	case admin.FollowEnd:
		one.text = "the run has ended: " + e.State
	case admin.FollowWaiting: // the facts of the run have it
	}
	if one.text == "" {
		return
	}
	t.output = t.output || !one.note
	t.bytes += len(one.text)
	if n := len(t.parts); n > 0 && !one.note && !t.parts[n-1].note {
		t.parts[n-1].text += one.text
	} else {
		t.parts = append(t.parts, one)
	}
	t.trim()
}

// trim drops what is too much from the beginning.
func (t *transcript) trim() {
	for t.bytes > mostOutput {
		first := &t.parts[0]
		drop := min(t.bytes-mostOutput, len(first.text))
		if first.note {
			drop = len(first.text)
		} else {
			t.dropped += drop
		}
		t.bytes -= drop
		if drop == len(first.text) {
			*first, t.parts = passage{}, t.parts[1:]
		} else {
			first.text = strings.Clone(first.text[drop:])
		}
	}
}

// outputLines shows the output of a run: as it was passed on while it was printed, or else as it is
// stored.
func (r *runScreen) outputLines(p palette, cells int) []string {
	heading, none := "OUTPUT", "none is kept (yet): it is stored when an attempt ends"
	if r.follower != nil && r.ended.IsZero() {
		heading, none = heading+" as it is printed", "nothing is printed yet"
	}
	lines := []string{"", p.paint(bold, heading)}
	note := func(text string) {
		for _, line := range wrap(clean(text), cells) {
			lines = append(lines, p.paint(dim, cut(line, cells)))
		}
	}
	shown := r.printed
	if !shown.output {
		shown.parts = append([]passage{{text: r.detail.Output}}, shown.parts...)
		if r.detail.Output == "" {
			note(none)
		} else if drop := len(r.detail.Output) - mostOutput; drop > 0 {
			shown.parts[0].text, shown.dropped = r.detail.Output[drop:], drop
		}
	}
	if shown.dropped > 0 {
		note(fmt.Sprintf("%d bytes before this are not shown", shown.dropped))
	}
	for _, one := range shown.parts {
		if one.note {
			note("── " + one.text)
			continue
		}
		for line := range strings.Lines(strings.TrimRight(one.text, "\n")) {
			line = clean(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    "))
			for part := range strings.SplitSeq(ansi.HardwrapWc(line, cells, true), "\n") {
				lines = append(lines, cut(part, cells))
			}
		}
	}
	if r.problem != "" {
		note("── the output cannot be followed: " + r.problem)
	}
	return lines
}
