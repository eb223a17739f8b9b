package cmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// format is an output format, as -o names it.
type format string

const (
	text   format = "text" // of commands that print no table
	tables format = "table"
	wide   format = "wide" // a table with more columns
	asJSON format = "json"
	asYAML format = "yaml"
	names  format = "name" // one name per line, for shells
)

// outputFlag adds -o to a command. The first format is the default.
func outputFlag(cmd *cobra.Command, formats ...format) *format {
	choice, words := formats[0], make([]string, len(formats))
	for i, f := range formats {
		words[i] = string(f)
	}
	list := strings.Join(words, ", ")
	cmd.Flags().FuncP("output", "o", "`FORMAT`: "+list, func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("it takes one of %s", list)
		}
		choice = format(s)
		return nil
	})
	cmd.Flags().Lookup("output").DefValue = string(choice) // for the help
	// fails only for an unknown flag
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	return &choice
}

// listFormats are the formats of commands that print a list.
func listFormats() []format { return []format{tables, wide, asJSON, asYAML, names} }

// list completes a command that prints a list. read returns the items, all or at most limit of
// them; show defines how they are printed at an instant, the server's time.
func list[T any](t *tool, cmd *cobra.Command, show func(now time.Time) view[T],
	read func(ctx context.Context, conn *connection, args []string, limit int) ([]T, error)) *cobra.Command {
	limit, output := limitFlag(cmd), outputFlag(cmd, listFormats()...)
	cmd.RunE = t.reads(func(ctx context.Context, conn *connection, args []string) error {
		items, err := read(ctx, conn, args, *limit)
		if err != nil {
			return err
		}
		now, err := conn.now(ctx)
		if err != nil {
			return err
		}
		return show(now).print(t, *output, first(items, *limit))
	})
	return cmd
}

// show completes a command that shows the one thing that its argument names. read returns it, and
// print prints it for people, at an instant of the server's time.
func show[T any](t *tool, cmd *cobra.Command, read func(ctx context.Context, conn *connection, name string) (T, error),
	print func(item T, now time.Time) error) *cobra.Command {
	output := outputFlag(cmd, text, asJSON, asYAML)
	cmd.RunE = t.reads(func(ctx context.Context, conn *connection, args []string) error {
		item, err := read(ctx, conn, args[0])
		if err != nil {
			return err
		}
		if *output != text {
			return t.encode(*output, item)
		}
		now, err := conn.now(ctx)
		if err != nil {
			return err
		}
		return print(item, now)
	})
	return cmd
}

// column is one column of a table of Ts.
type column[T any] struct {
	title string
	wide  bool // shown only with -o wide
	cell  func(T) string
}

// view defines how a list of Ts is printed.
type view[T any] struct {
	none    string // printed for an empty list: "no runs"
	name    func(T) string
	columns []column[T]
}

// print prints items in a format. JSON and YAML contain the whole items, the other formats what the
// view selects.
func (v view[T]) print(t *tool, f format, items []T) error {
	switch f {
	case asJSON, asYAML:
		return t.encode(f, append([]T{}, items...)) // never null
	case names:
		var b strings.Builder
		for _, item := range items {
			b.WriteString(v.name(item) + "\n")
		}
		return t.write(b.String())
	}
	if len(items) == 0 {
		fmt.Fprintln(t.stderr, v.none)
		return nil
	}
	var titles []string
	rows := make([][]string, len(items))
	for _, c := range v.columns {
		if c.wide && f != wide {
			continue
		}
		titles = append(titles, c.title)
		for i, item := range items {
			rows[i] = append(rows[i], c.cell(item))
		}
	}
	return t.table(titles, rows)
}

// table prints a table without ruled lines, so that other programs can cut it. An empty cell is a
// dash.
func (t *tool) table(titles []string, rows [][]string) error {
	lines := [][]string{make([]string, len(titles))}
	for i, title := range titles {
		lines[0][i] = strings.ToUpper(title)
	}
	for _, cells := range rows {
		line := make([]string, len(cells))
		for i, cell := range cells {
			line[i] = cmp.Or(cell, "-")
		}
		lines = append(lines, line)
	}
	return t.write(aligned(lines))
}

// aligned formats lines of cells, of which each has as many, in columns.
func aligned(lines [][]string) string {
	widths := make(map[int]int)
	for _, line := range lines {
		for i, cell := range line {
			line[i] = oneLine(cell)
			widths[i] = max(widths[i], width(line[i]))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		for i, cell := range line {
			b.WriteString(cell)
			if i < len(line)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// width returns how many characters a text takes on a terminal.
func width(s string) int {
	if strings.Contains(s, "\x1b") {
		s = escapes.ReplaceAllString(s, "")
	}
	return utf8.RuneCountInString(s)
}

// oneLine keeps foreign text, such as the error of a command, from breaking a table or the
// terminal, also by marks that reverse the direction of what follows. Of the control sequences,
// only colors remain.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\x1b' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, s)
	return escapes.ReplaceAllStringFunc(s, func(found string) string {
		if found == "\x1b" {
			return " "
		}
		return found
	})
}

var escapes = regexp.MustCompile("\x1b(\\[[0-9]*m)?")

// fact is one line of what a show command prints.
type fact struct{ name, value string }

// facts prints what is known about one thing, without empty values.
func (t *tool) facts(facts []fact) error {
	var lines [][]string
	for _, f := range facts {
		if f.value != "" {
			lines = append(lines, []string{f.name, f.value})
		}
	}
	return t.write(aligned(lines))
}

func (t *tool) write(s string) error {
	_, err := fmt.Fprint(t.stdout, s)
	return err
}

// encode prints a value as JSON, or the same as YAML.
func (t *tool) encode(f format, value any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	if f != asYAML {
		return t.write(b.String())
	}
	var node yaml.Node // JSON is YAML; nodes keep the order of keys
	if err := yaml.Unmarshal(b.Bytes(), &node); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	plain(&node)
	out, err := yaml.Marshal(&node)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return t.write(string(out))
}

// plain removes JSON's braces and quotes from nodes. The encoder goes by the tag, so it restores
// the quotes of values that would otherwise read as another type.
func plain(n *yaml.Node) {
	n.Style = 0
	if len(n.Content) == 0 && n.Kind != yaml.ScalarNode {
		n.Style = yaml.FlowStyle // [] and {}
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// ago and until describe how far an instant is from now; "" for the zero time.
func ago(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return admin.Age(now.Sub(at)) + " ago"
}

func until(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	if d := at.Sub(now); d > 0 {
		return "in " + admin.Age(d)
	}
	return "now"
}

// colours reports whether a stream should get colors.
func colours(stream any) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(stream)
}

// isTerminal reports whether a stream is a terminal, or at least a device.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// toneColors are the colors of a run's states, by their tones.
var toneColors = map[ledger.Tone]string{
	ledger.ToneGood: green, ledger.ToneBad: red, ledger.ToneBusy: cyan, ledger.ToneWarn: yellow, ledger.TonePassed: yellow,
}

// state colors the word for a state or an outcome.
func (t *tool) state(word string) string {
	if !colours(t.stdout) {
		return word
	}
	code := cmp.Or(map[string]string{
		"ready": green, "ok": green, "draining": yellow, "warning": yellow, "error": red,
		"crashed": red, "lost lease": yellow, "gone": red, "late": red, "stuck": red,
		"paused": yellow, "queue paused": yellow, "drifted": yellow, "no worker carries it": yellow,
		"no worker serves its queue": yellow,
	}[word], toneColors[ledger.State(word).Facts().Tone])
	if code == "" {
		return word
	}
	return code + word + plainAgain
}

const (
	red, green, yellow, cyan = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"
	plainAgain               = "\x1b[0m"
)
