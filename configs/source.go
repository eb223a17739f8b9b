package configs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
)

// fileLimit limits the size of a config file. 100,000 jobs take a tenth of it.
const fileLimit = 256 << 20

// source is one file that was read: its text for excerpts, and its nodes for positions.
type source struct {
	path string // as the operator wrote it, or as derived from the including file
	data []byte
	// The file's map, or nil if the file is empty or unusable.
	root     *yaml.Node
	file     file
	settings layer // those that the file sets

	lines func() []string // the lines of data, split when a problem first needs them

	mu      sync.Mutex          // guards secrets: jobs of one file are checked in parallel
	secrets map[*yaml.Node]bool // scalars that no excerpt may show
}

func newSource(path string, data []byte) *source {
	return &source{path: path, data: data, settings: newLayer(), lines: sync.OnceValue(func() []string {
		// the parser does not count it as a column
		text := strings.TrimPrefix(string(data), "\ufeff")
		return strings.Split(text, "\n")
	})}
}

// readPath reads a file, or the files of a folder. by is the include that names it, or nil for a
// path of [Options].
func (l *loader) readPath(path string, by *place) {
	if path == "" { // usually an unset variable
		l.add(Problem{Origin: Origin{File: `""`}, Severity: SeverityError, Code: CodeUnreadable, Message: "the path is empty"}, "")
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		l.inputs.missing(path)
		l.unreadable(path, by, err)
		return
	}
	if !info.IsDir() {
		// A pipe such as bash's <(...) can be read only once: not by a worker that reloads, nor by
		// an include.
		once := by == nil && l.inputs == nil
		l.readFile(path, by, func() *opened { return open(path, l.aside(), once) })
		return
	}
	list := func() ([]string, error) { return configFiles(path) }
	files, err := list()
	l.inputs.folder(path, files, list)
	if err != nil {
		l.unreadable(path, by, err)
		return
	}
	// The user named the folder and not the files, so a file may include its own folder.
	l.readFiles(files)
	if len(files) == 0 {
		l.pathProblem(path, by, CodeNoFiles, fmt.Sprintf("folder %q has no *.yaml or *.yml", path), "")
	}
}

// configFiles returns the config files of a folder, sorted.
func configFiles(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if path := filepath.Join(folder, e.Name()); isConfigName(e.Name()) && !isFolder(path) {
			files = append(files, path)
		}
	}
	return files, nil
}

func isConfigName(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".")
}

// isFolder follows symbolic links, because config maps of Kubernetes consist of them.
func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// readFiles reads the files of a folder or a pattern, in order. It parses and decodes them on all
// cores, because that is most of the work of a load.
func (l *loader) readFiles(files []string) {
	before := l.aside() // l itself changes meanwhile
	var parsing sync.WaitGroup
	defer parsing.Wait()
	cores := make(chan struct{}, runtime.GOMAXPROCS(0))
	ready := make([]chan *opened, len(files))
	for i := range files {
		// The channel of a file that is already known is never read.
		ready[i] = make(chan *opened, 1)
	}
	parsing.Go(func() {
		for i, path := range files {
			cores <- struct{}{}
			parsing.Go(func() {
				ready[i] <- open(path, before.aside(), false)
				<-cores
			})
		}
	})
	for i, path := range files {
		l.readFile(path, nil, func() *opened { return <-ready[i] })
	}
}

// opened is a file that was read, parsed and decoded.
type opened struct {
	input fileInput
	src   *source
	found *loader // with the problems of the file
	err   error   // why it could not be read
}

// open reads one file. l receives its problems. once allows a file that can be read only once.
func open(path string, l *loader, once bool) *opened {
	o := &opened{input: fileInput{path: path, id: identify(path)}, found: l}
	data, err := []byte(nil), errPipe
	if once || isLasting(path) {
		data, err = readLimited(path)
	}
	if err != nil {
		o.err = err
		return o
	}
	o.input.sum, o.input.read = sha256.Sum256(data), true
	o.src = newSource(path, data)
	if l.parse(o.src); o.src.root != nil {
		l.decodeFile(o.src)
	}
	return o
}

// readFile reads one file, and then the files that it includes. by is the include that names this
// file. It is nil if a pattern, a folder or the operator led here. opened returns the file.
func (l *loader) readFile(path string, by *place, opened func() *opened) {
	id := identity(path)
	if i := slices.IndexFunc(l.open, func(o openFile) bool { return o.id == id }); i >= 0 {
		// A pattern that also matches its own file is harmless.
		if by != nil {
			var chain []string
			for _, o := range l.open[i:] {
				chain = append(chain, o.path)
			}
			l.errorAt(by.src, by.node, CodeIncludeCycle,
				"files include each other: "+strings.Join(append(chain, path), " -> "), "remove one of these includes")
		}
		return
	}
	if l.known[id] {
		return
	}
	l.known[id] = true

	o := opened()
	if o.err != nil {
		l.inputs.missing(path)
		l.unreadable(path, by, o.err)
		return
	}
	s := o.src
	l.inputs.file(o.input)
	l.sources = append(l.sources, s)
	l.take(o.found)
	if s.root == nil {
		return
	}
	l.register(s)
	l.declare(s)
	l.declareTargets(s)

	l.open = append(l.open, openFile{id, path})
	_, list := find(s.root, "include")
	for i, pattern := range s.file.Include {
		if pattern != "" {
			l.include(pattern, place{s, list.Content[i]})
		}
	}
	l.open = l.open[:len(l.open)-1]
}

// openFile is a file while its includes are being read.
type openFile struct{ id, path string }

// identity returns the same text for all paths of one file.
func identity(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path // a pipe, such as bash's <(...)
}

var errPipe = errors.New("it is a pipe or a device, which can be read only once; write its output to a file")

// isLasting reports whether a file can be read repeatedly. Opening a pipe without a writer would
// block forever.
func isLasting(path string) bool {
	info, err := os.Stat(path)
	// The reader reports a file that cannot be read.
	return err != nil || info.Mode().IsRegular() || path == os.DevNull
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, fileLimit+1))
	if err == nil && len(data) > fileLimit {
		err = fmt.Errorf("larger than %d MiB", fileLimit>>20)
	}
	return data, err
}

// include reads the files that one entry of an include list names.
func (l *loader) include(pattern string, by place) {
	full := pattern
	if !filepath.IsAbs(pattern) {
		full = filepath.Join(filepath.Dir(by.src.path), pattern)
	}
	if !strings.ContainsAny(pattern, "*?[") {
		l.readPath(full, &by)
		return
	}
	if !filepath.IsAbs(pattern) {
		full = filepath.Join(escapePattern.Replace(filepath.Dir(by.src.path)), pattern)
	}
	list := func() ([]string, error) { return matchFiles(full, strings.HasPrefix(filepath.Base(pattern), ".")) }
	matches, err := list()
	l.inputs.folder(full, matches, list)
	if err != nil {
		l.errorAt(by.src, by.node, CodeUnreadable, fmt.Sprintf("include %s: not a pattern", quote(pattern)),
			"write a pattern such as conf.d/*.yaml")
		return
	}
	l.readFiles(matches)
	if len(matches) == 0 {
		l.warnAt(by.src, by.node, CodeNoFiles, fmt.Sprintf("include %s matches no file", quote(pattern)), "")
	}
}

// matchFiles returns the files that a pattern matches, sorted: either the hidden ones or the
// others.
func matchFiles(pattern string, hidden bool) ([]string, error) {
	matches, err := filepath.Glob(pattern) // sorted
	return slices.DeleteFunc(matches, func(m string) bool {
		return isFolder(m) || strings.HasPrefix(filepath.Base(m), ".") != hidden
	}), err
}

// escapePattern keeps special characters in the path of the including file from acting as a
// pattern.
var escapePattern = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

func (l *loader) unreadable(path string, by *place, err error) {
	if reason, ok := errors.AsType[*fs.PathError](err); ok {
		err = reason.Err // the message already names the path
	}
	hint := ""
	switch {
	case path == "-":
		hint = "write /dev/stdin for standard input"
	case errors.Is(err, fs.ErrNotExist):
		hint = nearestFile(path, path)
	}
	message := fmt.Sprintf("cannot be read: %v", err)
	if by != nil {
		if hint != "" {
			hint = nearestFile(path, by.node.Value)
		}
		message = fmt.Sprintf("include %s cannot be read: %v", quote(by.node.Value), err)
	}
	l.pathProblem(path, by, CodeUnreadable, message, hint)
}

// nearestFile suggests a file near one that does not exist, in the spelling in which that one was
// written.
func nearestFile(path, written string) string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if name := nearest(filepath.Base(path), names); name != "" {
		return didYouMean(filepath.Join(filepath.Dir(written), name))
	}
	return ""
}

func (l *loader) pathProblem(path string, by *place, code, message, hint string) {
	if by != nil {
		l.errorAt(by.src, by.node, code, message, hint)
		return
	}
	l.add(Problem{Origin: Origin{File: path}, Severity: SeverityError, Code: code, Message: message, Hint: hint}, "")
}

// parse turns the text of a file into nodes. If the file is unusable, it adds a problem and leaves
// root nil.
func (l *loader) parse(s *source) {
	if line, column, what := badCharacter(s.data); what != "" {
		l.lineError(s, line, column, CodeYAML, what, "")
		return
	}
	loader, err := yaml.NewLoader(bytes.NewReader(s.data))
	if err != nil {
		l.lineError(s, 1, 1, CodeYAML, err.Error(), "")
		return
	}
	var document yaml.Node
	if err := loader.Load(&document); err != nil {
		if !errors.Is(err, io.EOF) {
			l.syntaxError(s, err)
		}
		return
	}
	var second yaml.Node
	switch err := loader.Load(&second); {
	case err == nil:
		l.errorAt(s, &second, CodeSecondDocument, "a second YAML document begins here; a config file has only one",
			"put it into its own file, and include that file")
		return
	case !errors.Is(err, io.EOF):
		l.syntaxError(s, err)
		return
	}
	if len(document.Content) != 1 {
		return
	}
	root := document.Content[0]
	if isNull(root) {
		return // only comments, or "---"
	}
	if !l.bounded(s, root) {
		return
	}
	if root.Kind != yaml.MappingNode {
		l.errorAt(s, root, CodeType, "a config file must be a map of keys, not "+describe(root), "begin with a key, such as jobs:")
		return
	}
	s.root = root
}

// badCharacter finds characters that no config file may contain: those that the parser refuses
// without a position, and line breaks of YAML that editors do not treat as such, so that line
// numbers would differ.
func badCharacter(data []byte) (line, column int, what string) {
	line, column = 1, 1
	for i := 0; i < len(data); {
		if c := data[i]; c >= ' ' && c < 0x7f { // most characters
			i, column = i+1, column+1
			continue
		}
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return line, column, "not UTF-8 text"
		case r == '\u0085' || r == '\u2028' || r == '\u2029' || r == '\r' && !bytes.HasPrefix(data[i+1:], []byte("\n")):
			return line, column, fmt.Sprintf("the character %U breaks the line in YAML, but not in an editor", r)
		case r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f:
			return line, column, fmt.Sprintf("control character %U", r)
		case r == '\n':
			line, column = line+1, 0
		}
		i += size
		column++
	}
	return 0, 0, ""
}

// syntaxError reports the error of the YAML parser. The parser stops at the first mistake, so each
// file has at most one.
func (l *loader) syntaxError(s *source, err error) {
	load, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		l.lineError(s, 1, 1, CodeYAML, err.Error(), "")
		return
	}
	message, hint := load.Message, ""
	if load.ContextMsg != "" {
		message += " " + load.ContextMsg
	}
	switch {
	case strings.Contains(message, "tab character"), strings.HasPrefix(s.line(load.Mark.Line), "\t"):
		hint = "YAML is indented with spaces, not with tabs"
	case strings.Contains(message, "mapping values are not allowed"):
		hint = `quote a value that contains ": ", and check the indentation`
	case strings.Contains(message, "scanning an alias"):
		hint = `quote a value that begins with *: "*/5 * * * *"`
	case strings.Contains(message, "cannot start any token"):
		hint = "quote a value that begins with @, % or `"
	case strings.Contains(message, "parsing a flow") && strings.Contains(s.line(load.Mark.Line), "${"):
		hint = "quote a value with ${...} inside [ ] or { }"
	case strings.Contains(message, "parsing a flow"):
		hint = fmt.Sprintf("a bracket may be missing: this began at %d:%d", load.ContextMark.Line, load.ContextMark.Column)
	case strings.Contains(message, "did not find expected key"), strings.Contains(message, "block collection"):
		hint = "check the indentation of this line and of those above it"
	}
	line, column := load.Mark.Line, load.Mark.Column
	blank := func() bool { return strings.TrimSpace(s.line(line)) == "" }
	// An open bracket or quote is noticed at the end of the file, but the position where it was
	// opened is more useful.
	if blank() && load.ContextMark.Line > 0 {
		line, column = load.ContextMark.Line, load.ContextMark.Column
	}
	for blank() && line > 1 {
		line--
		column = utf8.RuneCountInString(s.line(line))
	}
	l.lineError(s, max(line, 1), max(column, 1), CodeYAML, message, hint)
}

// place is a node in its file.
type place struct {
	src  *source
	node *yaml.Node
}

func (l *loader) errorAt(s *source, n *yaml.Node, code, message, hint string) {
	l.addAt(s, n, SeverityError, code, message, hint)
}

func (l *loader) warnAt(s *source, n *yaml.Node, code, message, hint string) {
	l.addAt(s, n, SeverityWarning, code, message, hint)
}

func (l *loader) addAt(s *source, n *yaml.Node, severity Severity, code, message, hint string) {
	l.partProblem(s, n, "", 0, severity, code, message, hint)
}

// partProblem reports a part of a value, such as one field of cron text, if the file contains the
// part literally. Otherwise, and if part is "", it reports the whole value.
func (l *loader) partProblem(s *source, n *yaml.Node, part string, offset int, severity Severity, code, message, hint string) {
	p := Problem{Origin: s.origin(n), Severity: severity, Code: code, Message: message, Hint: hint,
		Excerpt: s.line(n.Line), Width: s.width(n)}
	if part != "" && offset >= 0 && offset <= len(n.Value) {
		if line, column := s.search(n, part, strings.Count(n.Value[:offset], part)); line > 0 {
			p.Line, p.Column, p.Excerpt, p.Width = line, column, s.line(line), utf8.RuneCountInString(part)
		}
	}
	l.add(p, part)
}

// search finds the position of a part of a scalar in the file. skip is how often the same text
// occurs earlier in the scalar. search returns 0 if the file does not contain the part literally,
// because of escapes or folded lines.
func (s *source) search(n *yaml.Node, part string, skip int) (line, column int) {
	lines := s.lines()
	indent := indentation(s.line(n.Line))
	for i := n.Line; i <= len(lines); i++ {
		text, before := s.line(i), ""
		switch {
		case i == n.Line:
			runes := []rune(text)
			from := min(max(n.Column-1, 0), len(runes))
			before, text = string(runes[:from]), string(runes[from:])
		case strings.TrimSpace(text) != "" && indentation(text) <= indent:
			return 0, 0 // after the end of the scalar
		}
		for {
			at := strings.Index(text, part)
			if at < 0 {
				break
			}
			if skip == 0 {
				return i, utf8.RuneCountInString(before+text[:at]) + 1
			}
			skip--
			before, text = before+text[:at+len(part)], text[at+len(part):]
		}
	}
	return 0, 0
}

func indentation(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

func (l *loader) lineError(s *source, line, column int, code, message, hint string) {
	l.add(Problem{Origin: Origin{File: s.path, Line: line, Column: column}, Severity: SeverityError, Code: code,
		Message: message, Hint: hint, Excerpt: maskedText(s.line(line)), Width: 1}, "")
}

var (
	assignment = pattern(`([A-Za-z0-9_.-]+)["']?\s*[:=]\s*`)
	urlInLine  = pattern("[a-z][a-z+.-]*://[^\\s\"'`]+")
)

// maskedText is masked for a line of a file that is not valid YAML, so that its values are unknown.
// It masks text after the name of a secret, and the credentials of a URL.
func maskedText(line string) string {
	stars := func(from, to int) {
		line = line[:from] + strings.Repeat("*", utf8.RuneCountInString(line[from:to])) + line[to:]
	}
	for _, at := range assignment().FindAllStringSubmatchIndex(line, -1) {
		if isSecretName(line[at[2]:at[3]]) {
			stars(at[1], len(line))
			break
		}
	}
	for _, at := range slices.Backward(urlInLine().FindAllStringIndex(line, -1)) {
		// the stars may be fewer bytes than the text they replace
		for _, s := range slices.Backward(jobs.URLSecrets(line[at[0]:at[1]])) {
			stars(at[0]+s.From, at[0]+s.To)
		}
	}
	return line
}

// hide hides a scalar in all excerpts of the file.
func (s *source) hide(n *yaml.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		s.secrets = make(map[*yaml.Node]bool)
	}
	s.secrets[n] = true
}

// masked returns a line of the file with its secrets masked: those that begin in it, and those of
// several lines. Each becomes as many stars as it has characters, so that columns do not change.
func (s *source) masked(number int, line string, begin, long []*yaml.Node) string {
	runes := []rune(line)
	for _, n := range begin {
		if n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			continue // it begins in the next line
		}
		from := min(n.Column-1, len(runes))
		to := len(runes)
		if s.ends(n) {
			to = min(from+s.width(n), len(runes))
		}
		for _, part := range secretParts(runes, from, to) {
			for i := part.From; i < part.To; i++ {
				runes[i] = '*'
			}
		}
	}
	for _, n := range long {
		if number > n.Line && s.continues(n, number) {
			for i := indentation(line); i < len(runes); i++ {
				runes[i] = '*'
			}
		}
	}
	return string(runes)
}

// secretParts returns the secrets in a part of a line, in characters: those of a URL if it has any,
// otherwise the whole part.
func secretParts(line []rune, from, to int) []jobs.Span {
	whole := []jobs.Span{{From: from, To: to}}
	if to-from > 1 && (line[from] == '"' || line[from] == '\'') && line[to-1] == line[from] {
		from, to = from+1, to-1
	}
	text := string(line[from:to])
	spans := jobs.URLSecrets(text)
	if len(spans) == 0 {
		return whole
	}
	for i, s := range spans {
		spans[i] = jobs.Span{From: from + utf8.RuneCountInString(text[:s.From]), To: from + utf8.RuneCountInString(text[:s.To])}
	}
	return spans
}

// ends reports whether a scalar ends in the line in which it begins.
func (s *source) ends(n *yaml.Node) bool {
	line := []rune(s.line(n.Line))
	rest := line[min(max(n.Column-1, 0), len(line)):]
	switch {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 || len(rest) == 0:
		return false
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		width := quotedWidth(rest)
		return width > 1 && rest[width-1] == rest[0]
	}
	return strings.HasPrefix(string(rest), n.Value)
}

// continues reports whether a line may belong to a scalar that began above: its indentation is
// deeper than that of the line in which the scalar begins.
func (s *source) continues(n *yaml.Node, number int) bool {
	for i := n.Line + 1; i <= number; i++ {
		if line := s.line(i); strings.TrimSpace(line) != "" && indentation(line) <= indentation(s.line(n.Line)) {
			return false
		}
	}
	return true
}

func (s *source) origin(n *yaml.Node) Origin {
	return Origin{File: s.path, Line: n.Line, Column: n.Column}
}

// line returns one line of the file, counted from 1.
func (s *source) line(n int) string {
	lines := s.lines()
	if n < 1 || n > len(lines) {
		return ""
	}
	return strings.TrimRight(lines[n-1], "\r")
}

// width returns how many characters of its line a node takes.
func (s *source) width(n *yaml.Node) int {
	line := []rune(s.line(n.Line))
	if n.Column < 1 || n.Column > len(line) {
		return 1
	}
	rest := line[n.Column-1:]
	switch {
	case n.Kind == yaml.AliasNode, n.Anchor != "", n.Style&yaml.TaggedStyle != 0:
		return wordWidth(rest)
	case n.Kind == yaml.ScalarNode && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		return quotedWidth(rest)
	case n.Kind == yaml.ScalarNode && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0:
		if value := []rune(n.Value); len(value) <= len(rest) && string(rest[:len(value)]) == n.Value {
			return max(1, len(value))
		}
		return wordWidth(rest) // a plain text of several lines
	case n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle == 0 && len(n.Content) > 0:
		return s.width(n.Content[0]) // a block begins at its first key
	}
	return 1
}

func wordWidth(rest []rune) int {
	i := slices.IndexFunc(rest, func(r rune) bool { return r == ' ' || r == ',' || r == ']' || r == '}' })
	if i < 0 {
		return len(rest)
	}
	return max(1, i)
}

func quotedWidth(rest []rune) int {
	mark := rest[0]
	for i := 1; i < len(rest); i++ {
		switch {
		case rest[i] == '\\' && mark == '"':
			i++
		case rest[i] == mark && mark == '\'' && i+1 < len(rest) && rest[i+1] == mark:
			i++
		case rest[i] == mark:
			return i + 1
		}
	}
	return len(rest)
}

// maskSecrets hides the detected secrets in all excerpts, whatever the problem is about.
func (l *loader) maskSecrets() {
	problems := make(map[string][]*reported)
	for i := range l.list {
		if p := &l.list[i]; p.Excerpt != "" {
			problems[p.File] = append(problems[p.File], p)
		}
	}
	for _, s := range l.sources {
		begin := make(map[int][]*yaml.Node) // by line
		var long []*yaml.Node
		for n := range s.secrets {
			begin[n.Line] = append(begin[n.Line], n)
			if !s.ends(n) {
				long = append(long, n)
			}
		}
		if len(begin) == 0 {
			continue
		}
		for _, p := range problems[s.path] {
			p.Excerpt = s.masked(p.Line, p.Excerpt, begin[p.Line], long)
		}
	}
}
