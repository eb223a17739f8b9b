package configs

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	rawType      = reflect.TypeFor[json.RawMessage]()
	textType     = reflect.TypeFor[text]()
	proseType    = reflect.TypeFor[prose]()
	stringType   = reflect.TypeFor[string]()
	jobFileType  = reflect.TypeFor[*jobFile]()
	permitType   = reflect.TypeFor[*permitFile]()
	targetType   = reflect.TypeFor[*targetFile]()
)

// rules are the rules for the value of a field, from its tags.
type rules struct {
	enum     []string
	min, max *bound
	check    string
	keys     string
	shape    string
	size     int
	secret   bool
	scalar   bool   // a list that may be written as its only element
	required string // what to write, for a key that the work of a job must have

	// The default of the key, as text. "" means the zero value.
	initial string
}

// bound is a limit as a number (for a duration in nanoseconds) and as text.
type bound struct {
	n    int64
	text string
}

// field is one key of a file type.
type field struct {
	name  string
	index []int
	typ   reflect.Type
	rules rules
}

// fields are the keys of a file type, in the order of its fields.
type fields struct {
	list   []*field
	names  []string
	byName map[string]*field
}

var fieldCache sync.Map // reflect.Type -> *fields

func fieldsOf(t reflect.Type) *fields {
	if f, ok := fieldCache.Load(t); ok {
		return f.(*fields)
	}
	f := &fields{byName: make(map[string]*field)}
	f.read(t, nil)
	cached, _ := fieldCache.LoadOrStore(t, f)
	return cached.(*fields)
}

func (f *fields) read(t reflect.Type, at []int) {
	for i := range t.NumField() {
		sf := t.Field(i)
		index := append(at[:len(at):len(at)], i)
		tag, ok := sf.Tag.Lookup("yaml")
		if !ok {
			continue
		}
		if tag == ",inline" {
			f.read(sf.Type, index)
			continue
		}
		one := &field{name: tag, index: index, typ: sf.Type, rules: readRules(sf)}
		f.list = append(f.list, one)
		f.names = append(f.names, tag)
		f.byName[tag] = one
	}
}

// readRules panics on an invalid tag, which is a mistake in this package.
func readRules(sf reflect.StructField) rules {
	r := rules{check: sf.Tag.Get("check"), keys: sf.Tag.Get("keys"), shape: sf.Tag.Get("shape"),
		secret: sf.Tag.Get("secret") != "", required: sf.Tag.Get("required"), scalar: sf.Tag.Get("scalar") != "", initial: sf.Tag.Get("default")}
	if words := sf.Tag.Get("enum"); words != "" {
		r.enum = strings.Split(words, ",")
	}
	if size := sf.Tag.Get("size"); size != "" {
		r.size = must(strconv.Atoi(size))
	}
	r.min, r.max = readBound(sf, "min"), readBound(sf, "max")
	for _, name := range []string{r.check, r.keys} {
		if _, ok := checks[name]; !ok && name != "" {
			panic(fmt.Sprintf("configs: field %s names no check: %s", sf.Name, name))
		}
	}
	return r
}

func readBound(sf reflect.StructField, tag string) *bound {
	s := sf.Tag.Get(tag)
	if s == "" {
		return nil
	}
	if valueType(sf.Type) == durationType {
		return &bound{int64(must(time.ParseDuration(s))), s}
	}
	return &bound{must(strconv.ParseInt(s, 10, 64)), s}
}

// must is for errors that only a mistake in this package can cause.
func must[T any](value T, err error) T {
	if err != nil {
		panic("configs: " + err.Error())
	}
	return value
}

// path is the decoder's position in a file, for messages.
type path struct {
	up  *path
	key string // "[2]" for an element of a list
}

func (p *path) to(key string) *path { return &path{p, key} }

func (p *path) elem(i int) *path { return &path{p, "[" + strconv.Itoa(i) + "]"} }

// split returns the keys below the job, and the job's name, if the path leads into a job.
func (p *path) split() (keys []string, job string, inJob bool) {
	for at := p; at != nil && at.up != nil; at = at.up {
		keys = append([]string{at.key}, keys...)
	}
	if len(keys) > 1 && keys[0] == "jobs" {
		return keys[2:], keys[1], true
	}
	return keys, "", false
}

// String returns `retry.max of job "a"`, `job "a"`, "worker.queues", or "the file".
func (p *path) String() string {
	keys, job, inJob := p.split()
	name := strings.ReplaceAll(strings.Join(keys, "."), ".[", "[")
	switch {
	case inJob && name == "":
		return fmt.Sprintf("job %q", job)
	case inJob:
		return fmt.Sprintf("%s of job %q", name, job)
	case name == "":
		return "the file"
	}
	return name
}

// in returns `in job "a"`, "in redis" or "at the top level".
func (p *path) in() string {
	if p.up == nil {
		return "at the top level"
	}
	return "in " + p.String()
}

// decoder decodes the nodes of one file into values of the file types. Each mistake becomes a
// problem and leaves the value unchanged.
type decoder struct {
	*loader
	src    *source
	stored bool // decoded values reach Redis
}

// decodeFile fills in s.file.
func (l *loader) decodeFile(s *source) {
	d := &decoder{loader: l, src: s}
	d.structure(s.root, reflect.ValueOf(&s.file).Elem(), &path{})
}

func (d *decoder) error(n *yaml.Node, code, message, hint string) {
	d.errorAt(d.src, n, code, message, hint)
}

// value decodes one node. It returns false if it could not set v.
func (d *decoder) value(n *yaml.Node, v reflect.Value, r *rules, p *path) bool {
	n = deref(n)
	if v.Type() == rawType {
		value, ok := d.json(n, p)
		if !ok {
			return false
		}
		v.SetBytes(must(jobs.EncodeArgs(value))) // it contains only types that JSON has
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		to := reflect.New(v.Type().Elem())
		ok := d.value(n, to.Elem(), r, p)
		if ok {
			v.Set(to)
		}
		return ok
	case reflect.Struct:
		return d.structure(n, v, p)
	case reflect.Map:
		return d.mapping(n, v, r, p)
	case reflect.Slice:
		return d.list(n, v, r, p)
	}
	return d.scalar(n, v, r, p)
}

// structure decodes a map into the fields of a struct.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, p *path) bool {
	known := fieldsOf(v.Type())
	if n.Kind != yaml.MappingNode {
		if n.Kind == yaml.ScalarNode && hasPassword(n.Value) {
			d.src.hide(n)
		}
		d.mismatch(n, "a map", p, structureHint(n, known, p, v.Type()))
		return false
	}
	for _, e := range d.entries(n, p) {
		f, ok := known.byName[e.key.Value]
		if !ok {
			eachSecret(e.value, e.key.Value, func(n *yaml.Node, _ secrecy) { d.src.hide(n) })
			likely := d.unknownKey(e.key, v.Type(), p)
			if owner, ok := v.Addr().Interface().(interface{ defined() *definition }); ok {
				owner.defined().likely = append(owner.defined().likely, likely)
			}
			continue
		}
		if isNull(e.value) {
			d.warnAt(d.src, e.key, CodeEmpty, p.to(f.name).String()+" is empty", "give it a value, or remove it")
			continue
		}
		if p.up == nil {
			// A job is stored with its runs, and a limit is stored in the lock space. Targets are
			// no settings either: a reload changes them.
			d.stored = f.name == "jobs" || f.name == "defaults" || f.name == "permits" || f.name == "notify"
			if d.stored && d.settingsOnly && !(d.withPermits && f.name == "permits") && !(d.withTargets && f.name == "notify") {
				continue
			}
		}
		before := len(d.report.list)
		value, at := v.FieldByIndex(f.index), p.to(f.name)
		if d.value(e.value, value, &f.rules, at) && !d.stored && p.up != nil && value.Kind() != reflect.Struct {
			d.src.settings.set(at.String(), value.Interface(), d.src.origin(e.key))
		}
		if len(d.report.list) > before {
			d.queuesWrong = d.queuesWrong || f.rules.keys == "queue"
			d.authWrong = d.authWrong || p.up == nil && f.name == "admin"
		}
	}
	return true
}

// structureHint suggests what to write in place of a value that should be a map: the key for which
// a scalar was probably meant, or the list of keys.
func structureHint(n *yaml.Node, known *fields, p *path, t reflect.Type) string {
	if t == jobFileType.Elem() && known.byName[p.key] != nil {
		return fmt.Sprintf("indent it if %s is a key of the job above, not the name of a job", p.key)
	}
	if n.Kind == yaml.ScalarNode && p.up != nil {
		switch {
		case known.byName["url"] != nil && strings.Contains(n.Value, "://") && !hasPassword(n.Value) && len(n.Value) < 80:
			return fmt.Sprintf("write %s: {url: %s}", p.key, quote(n.Value))
		case t == reflect.TypeFor[lockFile]() && len(n.Value) < 80:
			return fmt.Sprintf("write %s: {exclusive: [%s]}", p.key, quote(n.Value))
		}
		for _, f := range known.list {
			if slices.Contains(f.rules.enum, n.Value) {
				return fmt.Sprintf("write %s: {%s: %s}", p.key, f.name, n.Value)
			}
		}
		for _, f := range known.list {
			// retry: 3 and limit: 3 mean the first number
			if n.Tag == "!!int" && valueType(f.typ).Kind() == reflect.Int {
				return fmt.Sprintf("write %s: {%s: %s}", p.key, f.name, n.Value)
			}
		}
	}
	if len(known.names) >= 10 {
		return ""
	}
	return "its keys are " + strings.Join(known.names, ", ")
}

// entries returns the entries of a map that have a text as their key. It reports all other keys and
// all duplicates.
func (d *decoder) entries(n *yaml.Node, p *path) []entry {
	all := entries(n,
		func(first, second *yaml.Node) {
			if p.up != nil && p.up.up == nil && p.key == "jobs" {
				d.duplicateJob(second.Value, place{d.src, first}, place{d.src, second})
				return
			}
			d.error(second, CodeDuplicateKey, fmt.Sprintf("key %s %s is already at %s",
				quote(second.Value), p.in(), d.src.origin(first)), "keep one of them")
		},
		func(value *yaml.Node) {
			d.error(value, CodeType, "<< takes a map or a list of maps, not "+describe(value), "write <<: *name")
		})
	list := all[:0]
	for _, e := range all {
		if e.key.Kind != yaml.ScalarNode || isNull(e.key) {
			d.error(e.key, CodeType, fmt.Sprintf("a key %s must be a text, not %s", p.in(), describe(e.key)), "")
			continue
		}
		list = append(list, e)
	}
	return list
}

// unknownKey reports an unknown key, and returns the key that was probably meant, or "".
func (d *decoder) unknownKey(key *yaml.Node, t reflect.Type, p *path) string {
	likely, hint := likelyKey(key.Value, t, p)
	if likely != "" && hint == "" {
		hint = didYouMean(likely)
	}
	d.error(key, CodeUnknownKey, fmt.Sprintf("unknown key %s %s", quote(key.Value), p.in()), hint)
	return likely
}

// likelyKey returns the key of a file type that was probably meant by an unknown one, or "". The
// hint is "" if that key belongs in the same place.
func likelyKey(key string, t reflect.Type, p *path) (likely, hint string) {
	known := fieldsOf(t)
	wanted := plainKey(key)
	if name := wanted + "_file"; known.byName[name] != nil {
		return name, ""
	}
	others := strings.Fields(otherWords[wanted])
	for _, other := range others {
		if known.byName[other] != nil {
			return other, ""
		}
	}
	for _, other := range others {
		// retry_delay is nearer to retry than to its actual meaning
		if name, where := belongsUnder(other, known); name != "" {
			return name, where
		}
	}
	if remedy := noWords[wanted]; remedy != "" {
		return "", remedy
	}
	if name := nearest(key, known.names); name != "" {
		return name, ""
	}
	if len(others) > 0 {
		wanted = others[0]
	}
	if name, where := belongsUnder(wanted, known); name != "" {
		return name, where
	}
	inJobs := fieldsOf(jobFileType.Elem()).byName[wanted] != nil
	if t == reflect.TypeFor[policies]() && inJobs {
		return "", fmt.Sprintf("%q is set in each job, not in the defaults", wanted)
	}
	if keys, _, inJob := p.split(); inJob && len(keys) > 0 && inJobs {
		return "", fmt.Sprintf("%q belongs beside %q, not into it", wanted, keys[0])
	}
	if len(known.names) > 10 {
		return "", "lockstep config schema lists the keys that this version knows"
	}
	return "", "this version knows " + strings.Join(known.names, ", ")
}

// belongsUnder returns the key under which another key is known and a text that says so, or
// nothing.
func belongsUnder(wanted string, known *fields) (name, where string) {
	for _, f := range known.list {
		inner := valueType(f.typ)
		if inner.Kind() == reflect.Map {
			inner = valueType(inner.Elem())
		}
		if inner.Kind() != reflect.Struct || fieldsOf(inner).byName[wanted] == nil || f.name == "defaults" {
			continue
		}
		if f.typ == reflect.MapOf(stringType, jobFileType) {
			return f.name, fmt.Sprintf("%q belongs in a job, under %q", wanted, f.name)
		}
		return f.name, fmt.Sprintf("%q belongs under %q", wanted, f.name)
	}
	return "", ""
}

// mapping decodes a map with keys of the user's choice.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, r *rules, p *path) bool {
	if n.Kind != yaml.MappingNode {
		hint := mapHint(n, v.Type().Elem())
		if hint == "" {
			hint = "write NAME: VALUE"
			for _, c := range n.Content {
				if name, value, at := pair(deref(c)); at != nil && (isSecretName(name) || hasPassword(value)) {
					d.src.hide(at)
				}
			}
			eachSecret(n, p.key, func(n *yaml.Node, _ secrecy) { d.src.hide(n) })
		}
		d.mismatch(n, "a map", p, hint)
		return false
	}
	list := d.entries(n, p)
	if len(list) < r.size {
		d.error(n, CodeEmpty, p.String()+" is empty", "name at least one")
		return false
	}
	m := reflect.MakeMapWithSize(v.Type(), len(list))
	elem := v.Type().Elem()
	for _, e := range list {
		at := p.to(e.key.Value)
		if r.keys != "" {
			if f := checks[r.keys](e.key.Value); f != nil {
				d.fault(e.key, e.key.Value, p.in(), f, false, false)
				continue
			}
		}
		value := reflect.New(elem).Elem()
		switch {
		case elem.Kind() == reflect.Pointer:
			value.Set(reflect.New(elem.Elem()))
			d.definition(e, value, at)
		case isNull(e.value):
			d.error(e.key, CodeEmpty, at.String()+" is empty", emptyHint(elem))
			continue
		case !d.value(e.value, value, r, at):
			continue
		}
		m.SetMapIndex(reflect.ValueOf(e.key.Value), value)
	}
	v.Set(m)
	return true
}

// definition decodes a job, permits or a target. A job without any key is reported later, as one
// without work.
func (d *decoder) definition(e entry, v reflect.Value, p *path) {
	def := v.Interface().(interface{ defined() *definition }).defined()
	def.name, def.src, def.key = e.key.Value, d.src, e.key
	switch {
	case !isNull(e.value):
		def.node = deref(e.value)
		def.broken = !d.value(def.node, v.Elem(), &rules{}, p)
	case v.Type() == permitType:
		d.error(e.key, CodeEmpty, p.String()+" is empty", "write limit: NUMBER below it")
		def.broken = true
	case v.Type() == targetType:
		d.error(e.key, CodeEmpty, p.String()+" is empty", "write webhook: https://host/path below it, or url: for a service")
		def.broken = true
	}
}

// mapHint writes a list as the map that was probably meant: [A=b] as {A: "b"}, and [a] as {a: 1}.
// It returns "" for a list that may contain a secret.
func mapHint(n *yaml.Node, elem reflect.Type) string {
	if elem == jobFileType {
		return `write the job's name as a key, "NAME:", and its keys below that`
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return ""
	}
	words := make([]string, len(n.Content))
	for i, c := range n.Content {
		c = deref(c)
		name, value, at := pair(c)
		switch {
		case strings.ContainsAny(name, " :{}[],#&*!|>'\"%@`"), isSecretName(name), isSecretText(c.Value):
			return ""
		case at != nil && elem == textType && at.Kind == yaml.ScalarNode && !isSecretText(value) && !hasPassword(value):
			words[i] = name + ": " + strconv.Quote(value)
		case at == nil && elem.Kind() == reflect.Int && name != "":
			words[i] = name + ": 1"
		default:
			return ""
		}
	}
	hint := "write {" + strings.Join(words, ", ") + "}"
	if len(hint) > 100 {
		return ""
	}
	return hint
}

// pair reads an element of a list as a name with its value: A=b, or the form of Kubernetes, name: A
// and value: b. at is the node with the value. It is nil for a name alone.
func pair(n *yaml.Node) (name, value string, at *yaml.Node) {
	switch n.Kind {
	case yaml.ScalarNode:
		name, value, ok := strings.Cut(n.Value, "=")
		if ok {
			at = n
		}
		return name, value, at
	case yaml.MappingNode:
		_, key := find(n, "name")
		if _, at = find(n, "value"); key != nil && at != nil && key.Kind == yaml.ScalarNode {
			return key.Value, at.Value, at
		}
	}
	return "", "", nil
}

func emptyHint(t reflect.Type) string {
	if t == textType {
		return `write "" for an empty text`
	}
	return "give it a value"
}

// list decodes a list. An element that cannot be decoded remains empty, so that indexes match those
// in the file.
func (d *decoder) list(n *yaml.Node, v reflect.Value, r *rules, p *path) bool {
	if r.scalar && n.Kind == yaml.ScalarNode {
		s := reflect.MakeSlice(v.Type(), 1, 1)
		v.Set(s)
		return d.value(n, s.Index(0), r, p)
	}
	if n.Kind != yaml.SequenceNode {
		hint := listHint(n, v.Type().Elem() == textType)
		if n.Kind == yaml.ScalarNode && secrecyOfLine(n.Value) >= mustHide {
			d.src.hide(n)
			hint = ""
		}
		d.mismatch(n, "a list", p, hint)
		return false
	}
	if len(n.Content) < r.size {
		d.error(n, CodeEmpty, p.String()+" is empty", "")
		return false
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, c := range n.Content {
		if isNull(c) {
			d.error(c, CodeEmpty, p.elem(i).String()+" is empty", emptyHint(s.Type().Elem()))
			continue
		}
		d.value(c, s.Index(i), r, p.elem(i))
	}
	v.Set(s)
	return true
}

// listHint writes a scalar as the list that was probably meant.
func listHint(n *yaml.Node, command bool) string {
	if n.Kind != yaml.ScalarNode || len(n.Value) > 80 || strings.ContainsAny(n.Value, "\n") {
		return ""
	}
	if !command {
		return fmt.Sprintf("write [%s]", strconv.Quote(n.Value))
	}
	if strings.ContainsAny(n.Value, "|&;<>()`\"'\\*?~") || strings.Contains(n.Value, "$") {
		return fmt.Sprintf("write [sh, -c, %s]", strconv.Quote(n.Value))
	}
	words := strings.Fields(n.Value)
	for i, w := range words {
		if strings.ContainsAny(w, "[]{},:#%@!") {
			words[i] = strconv.Quote(w)
		}
	}
	return "write [" + strings.Join(words, ", ") + "]"
}

// mismatch reports a value of the wrong type for its key.
func (d *decoder) mismatch(n *yaml.Node, want string, p *path, hint string) {
	d.error(n, CodeType, fmt.Sprintf("%s takes %s, not %s", p, want, describe(n)), hint)
}

// scalar decodes a single value.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, r *rules, p *path) bool {
	t := v.Type()
	if n.Kind != yaml.ScalarNode {
		hint := ""
		if r.shape == "cron" && n.Kind == yaml.SequenceNode {
			hint = "write a job for each, or all hours into one field: 0 2,14 * * *"
		}
		d.mismatch(n, wanted(t, r), p, hint)
		return false
	}
	if !strings.HasPrefix(n.Tag, "!!") || n.Tag == "!!binary" {
		d.error(n, CodeYAML, fmt.Sprintf("the tag %s has no meaning here", n.Tag), "")
		return false
	}
	switch t {
	case proseType:
		v.SetString(n.Value)
		return true
	case textType:
		// A number is accepted as text: [sleep, 5] is a common spelling.
		value, replaced, ok := d.replace(n, p, false)
		if ok && r.check != "" {
			if f := checkString(value, r); f != nil {
				d.fault(n, n.Value, f.where(p), f, replaced, r.secret)
				return false
			}
		}
		if what := badText(value, p); ok && what != "" {
			d.error(n, CodeCharacter, fmt.Sprintf("%s holds %s", p, what), "")
			return false
		}
		v.SetString(n.Value) // unchanged: the job's worker replaces its ${...}
		return ok
	}

	value, replaced, ok := d.replace(n, p, d.stored)
	if !ok {
		return false
	}
	if f := strict(n, t, replaced, r, p); f != nil {
		d.fault(n, n.Value, f.where(p), f, replaced, r.secret)
		return false
	}
	decoded, f := convert(t, r, value, n.Tag == "!!int")
	if f != nil {
		if _, err := cronspec.Parse(value, nil); err == nil && p.key == "every" {
			f.hint = fmt.Sprintf("write schedule: %q", value)
		}
		d.fault(n, n.Value, f.where(p), f, replaced, r.secret)
		return false
	}
	v.Set(decoded)
	return true
}

// badText describes a character in a job's text that cannot be passed on, or returns "".
func badText(s string, p *path) string {
	switch {
	case strings.ContainsRune(s, 0):
		return "the character NUL, which cannot be passed to a program"
	case p.up.key == "headers" && strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && unicode.IsControl(r) }):
		return "a line break or another control character, which an HTTP header cannot contain"
	}
	return ""
}

// fault describes the mistake in one value.
type fault struct {
	code   string
	kind   string // the expected kind, for "bad <kind>"
	reason string // may quote the value
	// want replaces the reason if the message must not quote the value: "a duration, like 30s".
	want string
	hint string
	// The kind implies the key, so the message only needs to say where the key is.
	own bool
	// The whole message, if it does not fit "bad <kind> <value> <where>: <reason>".
	whole  string
	part   string // the wrong part, if the fault is in a part of the value
	offset int
}

// where describes the position of a value: "for retry.max of job "a"", or "in job "a"" if the kind
// implies the key.
func (f *fault) where(p *path) string {
	if f.own {
		return p.up.in()
	}
	return "for " + p.String()
}

// fault reports the mistake in a value. shown is the value as written. replaced means that it
// contains ${...}, so that the message may only quote the text as written.
func (d *decoder) fault(n *yaml.Node, shown, where string, f *fault, replaced, secret bool) {
	message, hint := f.sentence(shown, where, replaced, secret)
	// the wrong URL of a service may be a token alone
	if secret && (strings.Contains(n.Value, "@") && !jobs.PasswordIsReplaced(n.Value) || len(jobs.URLSecrets(n.Value)) > 0 ||
		!replaced && f.kind == kindService && !strings.Contains(n.Value, "://")) {
		d.src.hide(n)
	}
	part := f.part
	if replaced || secret {
		part = "" // it would quote the value
	}
	d.partProblem(d.src, n, part, f.offset, SeverityError, f.code, message, hint)
}

// sentence returns the message and hint of a fault.
func (f *fault) sentence(shown, where string, replaced, secret bool) (message, hint string) {
	if f.whole != "" && !replaced {
		return f.whole, f.hint
	}
	if !secret {
		shown = " " + quote(shown)
	} else {
		shown = ""
	}
	if replaced {
		return fmt.Sprintf("bad %s%s %s: its value is not %s", f.kind, shown, where, f.want), ""
	}
	return fmt.Sprintf("bad %s%s %s: %s", f.kind, shown, where, f.reason), f.hint
}

// wanted describes the kind of value that a key accepts.
func wanted(t reflect.Type, r *rules) string {
	switch {
	case t == durationType:
		return "a duration, such as 30s"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case r.enum != nil:
		return "one of " + strings.Join(r.enum, ", ")
	}
	return "a text"
}

// strict refuses values that YAML or Go would convert: a number in quotes, a text that looks like a
// number.
func strict(n *yaml.Node, t reflect.Type, replaced bool, r *rules, p *path) *fault {
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	want := wanted(t, r)
	mismatch := func(hint string) *fault {
		return &fault{code: CodeType, want: want, hint: hint,
			whole: fmt.Sprintf("%s takes %s, not %s", p, want, describe(n))}
	}
	switch n.Tag {
	case "!!bool":
		if t.Kind() == reflect.Bool {
			return nil
		}
		if t.Kind() == reflect.String && r.enum == nil {
			return mismatch(fmt.Sprintf("write %q", n.Value))
		}
		return mismatch("")
	case "!!int", "!!float":
		switch {
		case t == durationType:
			return nil // refused later, with the missing unit
		case t.Kind() == reflect.Bool:
			return mismatch("")
		case r.shape == "cron":
			return mismatch("write minute, hour, day of month, month and weekday")
		case t.Kind() == reflect.String && r.enum == nil:
			if f := checkString(n.Value, r); f != nil {
				return mismatch(f.hint) // in quotes it would be wrong too
			}
			return mismatch(fmt.Sprintf("write %q", n.Value))
		case t.Kind() == reflect.String:
			return nil // refused later, with the accepted words
		case n.Tag == "!!float" && strings.Trim(n.Value, "-0123456789") == "":
			return &fault{code: CodeRange, kind: "number", reason: "it is too large", want: want}
		case n.Tag == "!!float":
			return &fault{code: CodeNumber, kind: "number", reason: "it must be " + want, want: want}
		}
		return octal(n.Value)
	}
	if word := strings.ToLower(n.Value); t.Kind() == reflect.Bool && quoted && !replaced && (word == "true" || word == "false") {
		return mismatch("write " + word + ", without quotes")
	}
	if t.Kind() == reflect.Int && !replaced {
		if _, err := strconv.Atoi(n.Value); err == nil && quoted {
			return mismatch("write " + n.Value + ", without quotes")
		}
		return &fault{code: CodeNumber, kind: "number", reason: "it must be " + want, want: want}
	}
	return nil
}

var leadingZero = pattern(`^[-+]?0[0-9_]+$`)

// octal refuses 010, which YAML reads as 8.
func octal(s string) *fault {
	if !leadingZero().MatchString(s) {
		return nil
	}
	return &fault{code: CodeNumber, kind: "number", reason: "a leading zero makes it octal", want: "a plain number",
		hint: "write it without the zero, or in quotes if it is a text"}
}

// convert turns one text, with its ${...} replaced, into a value of a file type and checks it.
// Files, environment and flags all use it. yamlInt allows YAML's notations for whole numbers.
func convert(t reflect.Type, r *rules, s string, yamlInt bool) (reflect.Value, *fault) {
	v := reflect.New(t).Elem()
	switch {
	case t == durationType:
		d, f := parseDuration(s)
		if f != nil {
			if likely, _ := parseDuration(nearestDuration(s)); f.hint != "" && checkValue(reflect.ValueOf(likely), r) != nil {
				f.hint = "write " + r.bounds()
			}
			return v, f
		}
		v.SetInt(int64(d))
	case t.Kind() == reflect.Int:
		n, f := parseInt(s, yamlInt)
		if f != nil {
			return v, f
		}
		v.SetInt(int64(n))
	case t.Kind() == reflect.Bool:
		word := strings.ToLower(s) // YAML also has True and TRUE
		if word != "true" && word != "false" {
			f := &fault{code: CodeEnum, kind: "value", reason: "it must be true or false", want: "true or false"}
			switch word {
			case "yes", "y", "on", "1":
				f.hint = "write true"
			case "no", "n", "off", "0":
				f.hint = "write false"
			}
			return v, f
		}
		v.SetBool(word == "true")
	case t.Kind() == reflect.String:
		v.SetString(s)
	default:
		panic("configs: no way to read a " + t.String())
	}
	return v, checkValue(v, r)
}

// checkValue checks a value against the rules of its field.
func checkValue(v reflect.Value, r *rules) *fault {
	switch v.Kind() {
	case reflect.String:
		return checkString(v.String(), r)
	case reflect.Bool:
		return nil
	}
	n := v.Int()
	kind, write := "number", func(n int64) string { return strconv.FormatInt(n, 10) }
	if v.Type() == durationType {
		kind, write = "duration", func(n int64) string { return cronspec.FormatInterval(time.Duration(n)) }
	}
	want := r.bounds()
	switch {
	case r.min != nil && n < r.min.n, r.max != nil && n > r.max.n:
		return &fault{code: CodeRange, kind: kind, reason: "it must be " + want, want: "a " + kind + " " + want}
	case r.min == nil && n < 0:
		return &fault{code: CodeRange, kind: kind, reason: write(n) + " is negative", want: "positive"}
	}
	return nil
}

// bounds describes the range of a number or a duration. It is "" for an unlimited range.
func (r *rules) bounds() string {
	switch {
	case r.min != nil && r.max != nil:
		return fmt.Sprintf("from %s to %s", r.min.text, r.max.text)
	case r.min != nil:
		return "at least " + r.min.text
	}
	return ""
}

func checkString(s string, r *rules) *fault {
	if s == "" {
		return &fault{code: CodeEmpty, kind: "value", reason: "it is empty", want: "a text that is not empty",
			hint: "give it a value, or remove the key"}
	}
	if r.enum != nil {
		for _, word := range r.enum {
			if s == word {
				return nil
			}
		}
		f := &fault{code: CodeEnum, kind: "value", want: "one of " + strings.Join(r.enum, ", ")}
		f.reason = "it must be " + f.want
		if word := nearestWord(s, r.enum); word != "" {
			f.hint = didYouMean(word)
		}
		return f
	}
	if r.check != "" {
		return checks[r.check](s)
	}
	return nil
}

// parseDuration requires a unit, even for 0, where package time does not.
func parseDuration(s string) (time.Duration, *fault) {
	d, err := time.ParseDuration(s)
	if err == nil && s != "0" && s != "+0" && s != "-0" {
		return d, nil
	}
	f := &fault{code: CodeDuration, kind: "duration", want: "a duration with a unit, such as 30s",
		reason: "it must be a number and a unit, such as 30s, 15m or 1h30m"}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		f.reason = "it needs a unit"
	}
	if likely := nearestDuration(s); likely != "" {
		f.hint = didYouMean(likely)
	}
	return 0, f
}

func parseInt(s string, yamlInt bool) (int, *fault) {
	base := 10
	if yamlInt {
		s, base = strings.ReplaceAll(s, "_", ""), 0
	}
	n, err := strconv.ParseInt(s, base, strconv.IntSize)
	if err == nil {
		return int(n), nil
	}
	f := &fault{code: CodeNumber, kind: "number", reason: "it must be a whole number", want: "a whole number"}
	if errors.Is(err, strconv.ErrRange) {
		f.code, f.reason = CodeRange, "it is too large"
	}
	return 0, f
}

// replace returns a scalar with its ${...} replaced. replaced is false if the scalar contains
// neither a ${...} nor an escaped dollar sign. stored says that the result reaches Redis.
func (d *decoder) replace(n *yaml.Node, p *path, stored bool) (value string, replaced, ok bool) {
	list, wrong := jobs.Pieces(n.Value)
	if wrong != nil {
		d.placeholder(n, &placeholderError{CodePlaceholder, wrong}, p)
		return "", false, false
	}
	if list == nil {
		return n.Value, false, true
	}
	var b strings.Builder
	ok = true
	for _, part := range list {
		if stored && part.File != "" {
			d.placeholder(n, badPlaceholder(CodeSecretInRedis, part, "would reach Redis: this value is stored there",
				"secrets are allowed in command, http, env and args"), p)
			ok = false
			continue
		}
		replaced = replaced || part.Source != ""
		s, _, bad := d.replacer.value(part)
		if bad != nil {
			d.placeholder(n, bad, p)
			ok = false
		}
		b.WriteString(s)
	}
	return b.String(), replaced, ok
}

// placeholder reports a ${...}, at its own position in the text if that can be found.
func (d *decoder) placeholder(n *yaml.Node, bad *placeholderError, p *path) {
	message := fmt.Sprintf("%s %s, in %s", oneLine(bad.Source), bad.Reason, p)
	d.partProblem(d.src, n, bad.Source, strings.Index(n.Value, bad.Source), SeverityError, bad.code, message, bad.Hint)
}

// oneLine shortens an unclosed ${...}, which extends to the end of a text.
func oneLine(s string) string {
	const limit = 100
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit]) + "..."
	}
	return s
}

// json returns a node as a value that encoding/json can encode. It checks the ${...} in the node
// and keeps them.
func (d *decoder) json(n *yaml.Node, p *path) (any, bool) {
	n = deref(n)
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any)
		good := true
		for _, e := range d.entries(n, p) {
			value, ok := d.json(e.value, p.to(e.key.Value))
			m[e.key.Value] = value
			good = good && ok
		}
		return m, good
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		good := true
		for i, c := range n.Content {
			value, ok := d.json(c, p.elem(i))
			list[i] = value
			good = good && ok
		}
		return list, good
	}
	switch n.Tag {
	case "!!null":
		return nil, true
	case "!!bool":
		value, err := strconv.ParseBool(strings.ToLower(n.Value))
		if err == nil {
			return value, true
		}
	case "!!int", "!!float":
		number, f := jsonNumber(n.Value)
		if f == nil {
			return number, true
		}
		d.fault(n, n.Value, f.where(p), f, false, false)
		return nil, false
	case "!!str", "!!timestamp":
		_, _, ok := d.replace(n, p, false)
		return n.Value, ok
	}
	d.error(n, CodeYAML, fmt.Sprintf("the tag %s does not fit %s", n.Tag, quote(n.Value)), "")
	return nil, false
}

var plainNumber = pattern(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// jsonNumber returns a YAML number as JSON, with the same spelling if JSON allows it.
func jsonNumber(s string) (json.Number, *fault) {
	if plainNumber().MatchString(s) {
		return json.Number(s), nil
	}
	if f := octal(s); f != nil {
		return "", f
	}
	digits := strings.ReplaceAll(s, "_", "")
	if n, err := strconv.ParseInt(digits, 0, 64); err == nil {
		return json.Number(strconv.FormatInt(n, 10)), nil
	}
	if x, err := strconv.ParseFloat(digits, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
		return json.Number(strconv.FormatFloat(x, 'g', -1, 64)), nil
	}
	return "", &fault{code: CodeNumber, kind: "number", reason: "JSON has no such number", want: "a number"}
}
