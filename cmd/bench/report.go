package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"unicode/utf8"
)

// report is everything that one run of the program measured.
type report struct {
	Machine machine   `json:"machine"`
	Results []*result `json:"results"`
}

func (r report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// machine describes the machine and the versions that were measured.
type machine struct {
	Cores int `json:"cores"`
	// of 1, 5 and 15 minutes, before; "" if the system does not report it
	Load     string            `json:"load_average"`
	Go       string            `json:"go"`
	Redis    string            `json:"redis"`
	Versions map[string]string `json:"versions"` // of the libraries
}

func thisMachine(ctx context.Context) (machine, error) {
	m := machine{
		Cores: runtime.GOMAXPROCS(0), Load: loadAverage(), Go: runtime.Version(), Versions: make(map[string]string),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			for _, p := range peers {
				if dep.Path == p.module {
					m.Versions[p.name] = dep.Version
				}
			}
		}
	}
	s, err := startServer(ctx)
	if err != nil {
		return m, err
	}
	defer s.stop()
	info, err := s.info(ctx, "server")
	m.Redis = info["redis_version"]
	return m, err
}

func (m machine) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d cores, %s, Redis %s", m.Cores, m.Go, m.Redis)
	for _, p := range peers {
		if v := m.Versions[p.name]; v != "" && p.name != ours {
			fmt.Fprintf(&b, ", %s %s", p.name, v)
		}
	}
	if m.Load != "" {
		fmt.Fprintf(&b, "; load average %s", m.Load)
	}
	return b.String()
}

// loadAverage returns the load averages on Linux, and "" elsewhere.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// result is one table, with its targets.
type result struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Notes   []string `json:"notes"`
	Columns []string `json:"columns"`
	Rows    [][]any  `json:"rows"` // a string, a number or nil for each column
	Checks  []check  `json:"checks"`
	Load    string   `json:"load_average"` // after the measurement

	markdown bool // its table is for a README
}

// check is a figure with a target.
type check struct {
	What   string  `json:"what"`
	Got    float64 `json:"got"`
	Target float64 `json:"target"`
	AtMost bool    `json:"at_most"` // the target is an upper bound
	OK     bool    `json:"ok"`
}

func (r *result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// row adds a row. A figure that could not be computed, because a turn was too short for a single
// pair, is nil.
func (r *result) row(cells ...any) {
	for i, cell := range cells {
		if n, ok := cell.(float64); ok && !finite(n) {
			cells[i] = nil
		}
	}
	r.Rows = append(r.Rows, cells)
}

func finite(n float64) bool { return !math.IsNaN(n) && !math.IsInf(n, 0) }

func (r *result) atLeast(target, got float64, format string, args ...any) {
	r.check(check{fmt.Sprintf(format, args...), got, target, false, got >= target})
}

func (r *result) atMost(target, got float64, format string, args ...any) {
	r.check(check{fmt.Sprintf(format, args...), got, target, true, got <= target})
}

func (r *result) check(c check) {
	if !finite(c.Got) {
		r.note("not measured, because the turns are too short: %s", c.What)
		return
	}
	r.Checks = append(r.Checks, c)
}

// String returns the table for people.
func (r *result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", r.Name, r.Title)
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "  %s\n", note)
	}
	lines := [][]string{r.Columns}
	for _, row := range r.Rows {
		line := make([]string, len(row))
		for i, cell := range row {
			line[i] = text(cell)
		}
		lines = append(lines, line)
	}
	widths := make([]int, len(r.Columns))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if r.markdown {
		for i, line := range lines {
			b.WriteString("| " + strings.Join(line, " | ") + " |\n")
			if i == 0 {
				b.WriteString(strings.Repeat("|---", len(line)) + "|\n")
			}
		}
		lines = nil
	}
	for _, line := range lines {
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if r.words(i) {
				cell += pad
			} else {
				cell = pad + cell
			}
			line[i] = cell
		}
		b.WriteString("  " + strings.TrimRight(strings.Join(line, "  "), " ") + "\n")
	}
	for _, c := range r.Checks {
		verdict, bound := "missed", "at least"
		if c.OK {
			verdict = "ok"
		}
		if c.AtMost {
			bound = "at most"
		}
		fmt.Fprintf(&b, "  %-6s  %s: %s (target: %s %s)\n", verdict, c.What, text(c.Got), bound, text(c.Target))
	}
	if r.Load != "" {
		fmt.Fprintf(&b, "  load average after it: %s\n", r.Load)
	}
	return b.String()
}

// words reports whether a column contains text, which is left-aligned; numbers are right-aligned.
func (r *result) words(column int) bool {
	for _, row := range r.Rows {
		if _, ok := row[column].(string); ok {
			return true
		}
	}
	return false
}

// text formats a cell: a number with about three significant digits.
func text(cell any) string {
	switch cell := cell.(type) {
	case nil:
		return "-"
	case string:
		return cell
	case int:
		return strconv.Itoa(cell)
	case float64:
		digits := 2
		switch {
		case cell >= 100 || cell <= -100:
			digits = 0
		case cell >= 10 || cell <= -10:
			digits = 1
		}
		return strconv.FormatFloat(cell, 'f', digits, 64)
	}
	return fmt.Sprint(cell)
}
