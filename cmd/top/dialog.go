package top

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"

	"lockstep/scheduler/ledger"
)

// dialog is an act on its way:
//
//	choices ──▶ prepared ──▶ reason ──▶ confirmed, if it asks ──▶ done
//
// Esc leaves it in each state. An act that was sent is done all the same.
type dialog struct {
	choices []choice // to choose from, if there are several
	choice  choice   // the chosen one
	act     *Act     // nil: it is not prepared yet
	why     line     // the reason
	asks    bool     // the reason is given, and the user is asked
	sent    bool     // it is being done
	problem string   // why the last key did nothing
}

// choice is a kind of act on a target.
type choice struct {
	verb Verb
	on   Target
}

func (c choice) String() string { return string(c.verb) + " " + c.on.object(c.verb) }

// prepare shows what an act would do.
func (m *model) prepare(c choice) tea.Cmd {
	d := &dialog{choice: c}
	m.dialog = d
	fleet := m.fleet
	return m.beside(readLimit, func(ctx context.Context) tea.Msg {
		act, err := fleet.Prepare(ctx, c.verb, c.on)
		return preparedMsg{d, act, err}
	})
}

func (m *model) prepared(msg preparedMsg) {
	if msg.err != nil {
		m.dialog = nil
		m.say(ledger.ToneBad, msg.dialog.choice.String()+": "+msg.err.Error())
		return
	}
	m.dialog.act = msg.act
}

// press applies a key to the dialog.
func (d *dialog) press(m *model, key, text string) tea.Cmd {
	d.problem = ""
	switch {
	case key == "esc":
		m.dialog = nil
		if d.sent {
			m.say(ledger.ToneIdle, d.choice.String()+": sent, its result follows")
		} else {
			m.say(ledger.ToneIdle, "nothing was done")
		}
	case d.sent:
	case len(d.choices) > 0:
		if n, err := strconv.Atoi(key); err == nil && n >= 1 && n <= len(d.choices) {
			return m.prepare(d.choices[n-1])
		}
	case d.act == nil:
	case d.asks:
		switch key {
		case "y", "Y":
			return d.send(m)
		case "n", "N", "enter":
			m.dialog = nil
			m.say(ledger.ToneIdle, "not confirmed; nothing was done")
		}
	case key != "enter":
		d.why.edit(key, text)
	case d.act.Reason && strings.TrimSpace(d.why.text) == "":
		d.problem = "this needs a reason, which the holder receives"
	case d.act.Asks:
		d.asks = true
	default:
		return d.send(m)
	}
	return nil
}

// paste adds a text to the reason.
func (d *dialog) paste(text string) {
	if d.act != nil && !d.asks && !d.sent {
		d.why.add(text)
	}
}

func (d *dialog) send(m *model) tea.Cmd {
	d.sent = true
	act, why := d.act, strings.TrimSpace(d.why.text)
	return m.beside(actLimit, func(ctx context.Context) tea.Msg {
		said, err := act.Do(ctx, why)
		return doneMsg{d, said, err}
	})
}

func (m *model) done(msg doneMsg) {
	if m.dialog == msg.dialog {
		m.dialog = nil
	}
	if msg.err != nil {
		m.say(ledger.ToneBad, msg.dialog.choice.String()+": "+msg.err.Error())
		return
	}
	m.say(ledger.ToneGood, msg.said)
}

// lines draws the dialog.
func (d *dialog) lines(p palette, cells int) []string {
	title := d.choice.String()
	if len(d.choices) > 0 {
		title = "choose"
	}
	rule := cell("── "+title+" ", cells)
	lines := []string{p.paint(bold, rule+strings.Repeat("─", max(0, cells-width(rule))))}
	add := func(style, s string) {
		for _, line := range wrap(clean(s), cells) {
			lines = append(lines, p.paint(style, cut(line, cells)))
		}
	}
	switch {
	case len(d.choices) > 0:
		for i, c := range d.choices {
			lines = append(lines, cell(fmt.Sprintf("%d  %s", i+1, c), cells))
		}
		add(dim, "Press the number. Esc leaves.")
	case d.act == nil:
		add("", "Reading what this would do ...")
	case d.sent:
		add("", d.act.Effect+".")
		add("", "Sent, waiting for the result ...")
	case d.asks:
		add("", d.act.Effect+".")
		add(bold, "Continue? [y/N]")
	default:
		add("", d.act.Effect+".")
		label := "Reason: "
		if !d.act.Reason {
			label = "Reason (optional): "
		}
		lines = append(lines, label+d.why.show(max(3, cells-width(label))))
		add(dim, "Enter continues. Esc leaves.")
	}
	if d.problem != "" {
		add(red, d.problem)
	}
	return lines
}
