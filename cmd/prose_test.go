//go:build !race || lint

package cmd

import (
	"cmp"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// The test in this file enforces plain American technical English in all texts of the repository:
// comments, string literals and documents. `make lint` runs this file alone, so it must not use
// other files of the package. Under the race detector it would take twenty times as long, and `make
// check` has run it by then. The file itself is not checked, because it names the habits.
//
// Fix a finding by rewriting the sentence. If the sentence is right as it is, dismiss the finding
// with a marker and a reason: prose:ok REASON, in a comment right after //, --, # or <!--. A marker
// after code dismisses the findings of its line. A marker inside a comment or a Markdown paragraph
// dismisses the findings of that comment or paragraph. A marker without a finding is an error.

// A prosePattern finds a habit that this repository avoids.
type prosePattern struct {
	name    string
	words   string // alternatives of a regular expression, which match whole words in any case
	reason  string
	instead string

	// perThousand allows that many findings for each 1000 lines of comments. Such a pattern has
	// legitimate uses, but many of them show a habit. It ignores strings and documents.
	perThousand float64

	// only limits the findings to matches for which it returns true. before and after are the rest
	// of the passage.
	only func(before, after string) bool
}

var prosePatterns = []prosePattern{
	{
		name:        "who",
		words:       `who|whom|whose|whoever|whomever`,
		reason:      "a process is not a person, and relative clauses make sentences long",
		instead:     "the actor (the worker on duty, a waiter, the caller), or a second sentence",
		perThousand: 5,
	},
	{
		name:    "headless who",
		words:   `who|whom|whoever|whomever`,
		reason:  "who without a person before it hides the actor",
		instead: "the worker on duty, a waiter, the first worker, to the caller",
		only:    noPersonBefore,
	},
	{
		name:    "tells whether",
		words:   `(?:tell|tells|say|says) (?:whether|if)`,
		reason:  "functions report and return",
		instead: "reports whether; returns true if",
	},
	{
		name:    "say again",
		words:   `(?:say|says|said|saying) (?:it |them |so )?again`,
		reason:  "the field's term is re-assert",
		instead: "re-assert; repeat",
	},
	{
		name:    "he",
		words:   `he|him|his|himself`,
		reason:  "a process is an it, and the sex of a person does not matter",
		instead: "it, its; they, their for a person",
	},
	{
		name:        "nobody",
		words:       `nobody|somebody|everybody|anybody`,
		reason:      "the sentence does not name its actor",
		instead:     "no worker, another client, all replicas",
		perThousand: 10,
	},
	{
		name:    "stands",
		words:   `stands? (?:in|on|under|for|behind|before|beside|at|above|below|between|still|alone|there|empty|here|open)`,
		reason:  "data does not stand anywhere",
		instead: "is valid, is stored in, is held, belongs to, means",
	},
	{
		name:    "gives up",
		words:   `gives? (?:it |them )?up|giving up|given up|gave up`,
		reason:  "it can mean release, abandon or stop trying",
		instead: "releases; abandons; stops waiting",
	},
	{
		name:    "goes on",
		words:   `goes on|going on|went on|gone on`,
		reason:  "the plain verb is continue",
		instead: "continues; is running",
	},
	{
		name:    "makes good",
		words:   `makes? good|made good`,
		reason:  "the plain verb is repair",
		instead: "repairs; compensates for",
	},
	{
		name:    "takes away",
		words:   `takes? away|took away|taken away`,
		reason:  "the field's terms are revoke and remove",
		instead: "revokes; removes",
	},
	{
		name:    "is to be",
		words:   `(?:is|are|was|were|has|have|had) to be`,
		reason:  "an obligation is shorter with must",
		instead: "must; should; will",
	},
	{
		name:    "in vain",
		words:   `in vain|for good|no more than that`,
		reason:  "technical prose says it literally",
		instead: "without success; permanently, without a retry",
	},
	{
		name:    "is gone",
		words:   `(?:is|are|was|were) (?:gone|away)`,
		reason:  "it does not say what happened",
		instead: "has exited; was removed; is unreachable",
	},
	{
		name:    "What ... as a subject",
		words:   `what`,
		reason:  "a sentence begins with its subject, not with a clause",
		instead: "Due runs are ...; Canceling ends ...",
		only:    beginsStatement,
	},
}

// persons are words that who may refer to.
var persons = wordSet("user users person people admin admins operator operators author authors reader readers newcomer " +
	"newcomers developer developers those anyone everyone man woman team teams attacker attackers one administrator " +
	"administrators human humans somebody maintainer maintainers")

func wordSet(list string) map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq(list) {
		set[word] = true
	}
	return set
}

func noPersonBefore(before, after string) bool {
	if strings.HasPrefix(after, " holds what") { // the question that `lockstep lock ls` answers
		return false
	}
	fields := strings.Fields(before)
	if len(fields) == 0 {
		return true
	}
	last := strings.ToLower(strings.TrimFunc(fields[len(fields)-1], func(r rune) bool { return !unicode.IsLetter(r) }))
	return !persons[last]
}

// beginsStatement reports whether a match is the capitalized beginning of a sentence that is not a
// question.
func beginsStatement(before, after string) bool {
	before = strings.TrimRight(before, " ")
	if before != "" && !strings.HasSuffix(before, ".") {
		return false
	}
	if strings.HasPrefix(after, " happens ") { // the title of a table, or the doc of a policy
		return false
	}
	end := strings.IndexAny(after, ".?!;")
	return end > 0 && after[end] != '?'
}

// A passage is a text that belongs together: a paragraph of a comment or document, or a string.
type passage struct {
	comment bool
	first   int      // number of its first line in the file
	same    bool     // all lines are on the first line of the file, as in "a\nb"
	lines   []string // without comment marks
}

// text returns the passage as one line, and a function from offsets in it to line numbers.
func (p *passage) text() (string, func(offset int) int) {
	return strings.Join(p.lines, " "), func(offset int) int {
		if p.same {
			return p.first
		}
		for i, line := range p.lines {
			if offset -= len(line) + 1; offset < 0 {
				return p.first + i
			}
		}
		return p.first + len(p.lines) - 1
	}
}

// A document is one file of the repository.
type document struct {
	path     string
	lines    []string
	passages []passage
	comments map[int]bool // lines that have a comment
	markers  map[int]int  // line -> line of the marker that dismisses its findings
	used     map[int]bool // lines of markers with a finding
}

var (
	proseMarker = regexp.MustCompile(`(?://|--|#|<!--)[ \t]?prose:ok\b[ \t]*(.*)$`)
	exempted    = regexp.MustCompile(`://|//nolint|//go:|^\s*//\s+\S*$|^[a-z-]+:[^#]* ## `) // the last one: help in the Makefile
)

// longestComment limits the columns of a line with a comment, where tabs are four columns wide.
const longestComment = 100

func TestProseIsPlainEnglish(t *testing.T) {
	t.Parallel()
	var comments int
	expressions := make([]*regexp.Regexp, len(prosePatterns))
	for i, pattern := range prosePatterns {
		expressions[i] = regexp.MustCompile(`(?i)(?:^|[^\pL\d_'{$-])(` + pattern.words + `)(?:[^\pL\d_-]|$)`)
	}
	counts := make(map[string]map[string]int) // pattern -> folder -> findings
	for _, d := range repository(t, "..") {
		comments += len(d.comments)
		for i, pattern := range prosePatterns {
			counted := pattern.perThousand > 0
			if counts[pattern.name] == nil {
				counts[pattern.name] = make(map[string]int)
			}
			for _, p := range d.passages {
				if counted && !p.comment {
					continue
				}
				text, lineAt := p.text()
				for _, at := range expressions[i].FindAllStringSubmatchIndex(text, -1) {
					from, to := at[2], at[3]
					if pattern.name == "What ... as a subject" && text[from] != 'W' || pattern.only != nil && !pattern.only(text[:from], text[to:]) {
						continue
					}
					line := lineAt(from)
					if d.dismisses(line) {
						continue
					}
					counts[pattern.name][filepath.Dir(d.path)]++
					if !counted {
						t.Errorf("%s:%d: %q: %s; write: %s", d.path, line, around(text, from, to), pattern.reason, pattern.instead)
					}
				}
			}
		}
		for _, line := range slices.Sorted(maps.Keys(d.comments)) {
			if width := columns(d.lines[line-1]); width > longestComment && !exempted.MatchString(d.lines[line-1]) && !d.dismisses(line) {
				t.Errorf("%s:%d: the line has %d columns; write at most %d, and a comment above a long line of code", d.path, line,
					width, longestComment)
			}
		}
		for _, marker := range slices.Compact(slices.Sorted(maps.Values(d.markers))) {
			switch reason := proseMarker.FindStringSubmatch(d.lines[marker-1])[1]; {
			case strings.TrimSpace(strings.TrimSuffix(reason, "-->")) == "":
				t.Errorf("%s:%d: prose:ok needs a reason", d.path, marker)
			case !d.used[marker]:
				t.Errorf("%s:%d: prose:ok dismisses nothing; remove it", d.path, marker)
			}
		}
	}
	if comments < 1000 {
		t.Fatalf("only %d lines with comments: the test finds too little", comments)
	}
	for _, pattern := range prosePatterns {
		sum := 0
		var folders []string
		for _, folder := range slices.SortedFunc(maps.Keys(counts[pattern.name]), func(a, b string) int {
			return cmp.Compare(counts[pattern.name][b], counts[pattern.name][a])
		}) {
			sum += counts[pattern.name][folder]
			folders = append(folders, fmt.Sprintf("%s %d", folder, counts[pattern.name][folder]))
		}
		rate := 1000 * float64(sum) / float64(comments)
		t.Logf("%-22s %4d, %.1f per 1000 of %d lines with comments", pattern.name, sum, rate, comments)
		if pattern.perThousand > 0 && rate > pattern.perThousand {
			t.Errorf("%q: %.1f per 1000 lines of comments, want at most %g: %s; write: %s; by folder: %s", pattern.name, rate,
				pattern.perThousand, pattern.reason, pattern.instead, strings.Join(folders, ", "))
		}
	}
}

// dismisses reports whether a marker dismisses the findings of a line.
func (d *document) dismisses(line int) bool {
	marker, ok := d.markers[line]
	if ok {
		d.used[marker] = true
	}
	return ok
}

// around returns a match with some words on either side.
func around(text string, from, to int) string {
	begin, end := max(0, from-25), min(len(text), to+25)
	for begin > 0 && text[begin-1] != ' ' {
		begin--
	}
	for end < len(text) && text[end] != ' ' {
		end++
	}
	return text[begin:end]
}

func columns(line string) int {
	width := 0
	for _, r := range line {
		if r == '\t' {
			width += 4 - width%4
		} else {
			width++
		}
	}
	return width
}

// repository returns all files below root that people read.
func repository(t *testing.T, root string) []*document {
	t.Helper()
	var list []*document
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == ".git" || name == "bin" || name == "fuzz" && strings.Contains(path, "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		read := reader(name)
		if read == nil || name == "prose_test.go" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !utf8.Valid(data) {
			return nil
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		d := &document{path: relative, lines: strings.Split(string(data), "\n"),
			comments: make(map[int]bool), markers: make(map[int]int), used: make(map[int]bool)}
		read(d, data)
		list = append(list, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// reader returns the function that reads files of this name, or nil.
func reader(name string) func(d *document, data []byte) {
	switch filepath.Ext(name) {
	case ".go":
		return (*document).readGo
	case ".lua":
		return func(d *document, _ []byte) { d.readLines("--") }
	case ".md":
		return (*document).readMarkdown
	case ".yaml", ".yml":
		return func(d *document, _ []byte) { d.readLines("#") }
	}
	if name == "Makefile" {
		return func(d *document, _ []byte) { d.readLines("#") }
	}
	return nil
}

func (d *document) readGo(data []byte) {
	file := token.NewFileSet().AddFile(d.path, -1, len(data))
	var s scanner.Scanner
	s.Init(file, data, nil, scanner.ScanComments)
	var block []string // full-line comments on consecutive lines
	first := 0
	flush := func() {
		d.addComment(first, block)
		block = nil
	}
	code := 0 // the last line with code
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			break
		}
		line := file.Line(pos)
		switch {
		case tok == token.COMMENT && strings.HasPrefix(literal, "//"):
			text := strings.TrimPrefix(literal, "//")
			switch {
			case code == line:
				flush()
				d.addTrailing(line, text)
			case block != nil && line == first+len(block):
				block = append(block, text)
			default:
				flush()
				first, block = line, []string{text}
			}
		case tok == token.COMMENT:
			flush()
			d.addComment(line, strings.Split(literal, "\n"))
		case tok == token.STRING:
			if value, err := strconv.Unquote(literal); err == nil && strings.Contains(value, " ") {
				d.passages = append(d.passages, passage{first: line, same: literal[0] == '"', lines: strings.Split(value, "\n")})
			}
			code = line + strings.Count(literal, "\n")
		case tok != token.SEMICOLON || literal != "\n":
			code = line
		}
	}
	flush()
}

// readLines reads a file with line comments. A mark inside a string of the file does not matter: it
// makes a comment of the rest of the string.
func (d *document) readLines(mark string) {
	var block []string
	first := 0
	flush := func() {
		d.addComment(first, block)
		block = nil
	}
	for i, line := range d.lines {
		before, text, ok := strings.Cut(line, mark)
		switch {
		case !ok:
			flush()
		case strings.TrimSpace(before) == "":
			if block == nil {
				first = i + 1
			}
			block = append(block, text)
		case strings.HasSuffix(before, " ") || strings.HasSuffix(before, "\t"):
			flush()
			d.addTrailing(i+1, text)
		default:
			flush()
		}
	}
	flush()
}

func (d *document) readMarkdown([]byte) {
	first, fenced := 0, false
	var block []string
	flush := func() {
		if block != nil {
			d.mark(first, block)
			d.passages = append(d.passages, passage{first: first, lines: block})
		}
		block = nil
	}
	for i, line := range d.lines {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			fenced = !fenced
		}
		row := strings.HasPrefix(trimmed, "|") // of a table
		if trimmed == "" || fenced || row || strings.HasPrefix(trimmed, "```") {
			flush()
		}
		if trimmed == "" || fenced || strings.HasPrefix(trimmed, "```") {
			continue
		}
		if block == nil {
			first = i + 1
		}
		block = append(block, line)
	}
	flush()
}

// addComment adds a comment of full lines, which have no comment marks.
func (d *document) addComment(first int, lines []string) {
	if len(lines) == 0 {
		return
	}
	d.mark(first, lines)
	begin := 0
	from := len(d.passages)
	add := func(end int) {
		if begin < end {
			d.passages = append(d.passages, passage{comment: true, first: first + begin, lines: lines[begin:end]})
		}
		begin = end + 1
	}
	output := false // the output of an example is not prose
	for i, line := range lines {
		output = output || strings.HasPrefix(strings.TrimSpace(line), "Output:")
		directive := line != "" && line[0] != ' ' && line[0] != '\t' && strings.Contains(line, ":")
		if !output && !directive {
			d.comments[first+i] = true
		}
		if strings.TrimSpace(line) == "" || output || directive {
			add(i)
		}
	}
	add(len(lines))
	for _, p := range d.passages[from:] {
		for i, line := range p.lines {
			p.lines[i] = strings.TrimSpace(line)
		}
	}
}

// addTrailing adds a comment after code.
func (d *document) addTrailing(line int, text string) {
	d.comments[line] = true
	if !proseMarker.MatchString("//" + text) {
		d.passages = append(d.passages, passage{comment: true, first: line, lines: []string{strings.TrimSpace(text)}})
		return
	}
	d.markers[line] = line
}

// mark finds a marker in a comment or paragraph.
func (d *document) mark(first int, lines []string) {
	for i := range lines {
		if number := first + i; proseMarker.MatchString(d.lines[number-1]) {
			for j := range lines {
				d.markers[first+j] = number
			}
			return
		}
	}
}
