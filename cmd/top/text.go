package top

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"lockstep/scheduler/ledger"
)

// The width of a text is the sum of the widths of its characters. Terminals that join characters
// to one use fewer cells, never more.

func width(s string) int { return ansi.StringWidthWc(s) }

// clean returns a text of others in a form that a terminal only prints: colors are removed, and
// everything else that is not printable is a space. That includes line ends, and marks that change
// the direction of text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0xfe00 && r <= 0xfe0f: // selects a form of the character before, of another width
			return -1
		case unicode.IsPrint(r):
			return r
		}
		return ' '
	}, plain(s))
}

// plain removes the sequences that set colors, which are common in the output of commands.
func plain(s string) string {
	const begin = "\x1b["
	if !strings.Contains(s, begin) {
		return s
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, begin)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		rest := strings.TrimLeft(after, "0123456789;:")
		if s, found = strings.CutPrefix(rest, "m"); !found {
			b.WriteString(begin)
			s = after
		}
	}
}

// cell returns a text of others, cleaned and cut to a width. Its cost does not depend on the length
// of the text.
func cell(s string, most int) string {
	if bytes := 16*most + 64; len(s) > bytes { // a character may have many marks
		s = strings.ToValidUTF8(s[:bytes], "") + "…"
	}
	return cut(clean(s), most)
}

// cut shortens a clean text to a width. An ellipsis shows that something is missing.
func cut(s string, most int) string {
	if most <= 0 {
		return ""
	}
	return ansi.TruncateWc(s, most, "…")
}

// fit returns a clean text in exactly this width.
func fit(s string, cells int) string {
	s = cut(s, cells)
	return s + strings.Repeat(" ", max(0, cells-width(s)))
}

// joined returns as many parts as fit into a width. An ellipsis shows that some are missing.
func joined(parts []string, cells int) string {
	var b strings.Builder
	for i, part := range parts {
		room := cells
		if i < len(parts)-1 {
			room -= 2 // for the ellipsis
		}
		if i > 0 {
			part = " · " + part
			if width(b.String())+width(part) > room {
				b.WriteString(" …")
				break
			}
		}
		b.WriteString(part)
	}
	return cut(b.String(), cells)
}

// wrap breaks a clean text into lines of a width, at blanks if possible.
func wrap(s string, cells int) []string {
	if cells <= 0 {
		return nil
	}
	return strings.Split(ansi.WrapWc(s, cells, ""), "\n")
}

// palette reports whether a screen has colors.
type palette bool

// The styles of a text, as parameters of the sequence that sets them.
const (
	bold, dim, reversed      = "1", "2", "7"
	red, green, yellow, cyan = "31", "32", "33", "36"
)

// styleOf returns the color of a tone.
func styleOf(tone ledger.Tone) string {
	switch tone {
	case ledger.ToneGood:
		return green
	case ledger.ToneBad:
		return red
	case ledger.ToneBusy, ledger.ToneNext:
		return cyan
	case ledger.ToneWarn, ledger.TonePassed:
		return yellow
	case ledger.ToneIdle:
	}
	return ""
}

// paint sets the style of a text. Without colors, it returns the text.
func (p palette) paint(style, s string) string {
	if !bool(p) || style == "" || s == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

// line is a text that the user types. Its cursor is at the end.
type line struct{ text string }

// longest limits what a user can type, in bytes.
const longest = 4096

func (l *line) add(s string) {
	s = clean(s)
	if len(l.text)+len(s) <= longest {
		l.text += s
	}
}

// erase removes the last character, or the last word.
func (l *line) erase(word bool) {
	runes := []rune(l.text)
	if !word {
		l.text = string(runes[:max(0, len(runes)-1)])
		return
	}
	s := strings.TrimRight(l.text, " ")
	l.text = s[:strings.LastIndexByte(s, ' ')+1]
}

// edit applies a key. It returns false if the key does not edit.
func (l *line) edit(key, text string) bool {
	switch key {
	case "backspace", "ctrl+h":
		l.erase(false)
	case "ctrl+w":
		l.erase(true)
	case "ctrl+u":
		l.text = ""
	default:
		if text == "" {
			return false
		}
		l.add(text)
	}
	return true
}

// show returns the end of the line, with a cursor, in at most this width.
func (l *line) show(most int) string {
	s := l.text
	if more := width(s) - (most - 2); more > 0 {
		s = ansi.TruncateLeftWc(s, more, "…")
	}
	return s + "▏"
}
