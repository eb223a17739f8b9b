package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"lockstep/jobs"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

//go:embed page
var files embed.FS

// parsePages parses the templates of the pages. layout.html has the frame of every page; each other
// file is one page.
func parsePages(link linker) *template.Template {
	return template.Must(template.New("pages").Funcs(template.FuncMap{
		"path":          link.path,
		"menu":          link.menu,
		"ago":           func(t admin.Instant, now time.Time) moment { return relative(t.Time, now) },
		"tick":          func(t admin.TickTime, now time.Time) moment { return relative(t.Time, now) },
		"exactly":       func(t time.Time) moment { return relative(t, t) },
		"for":           func(s admin.Seconds) string { return admin.Span(time.Duration(s)) },
		"span":          admin.Span,
		"took":          func(r admin.Run) string { return took(&r) },
		"badge":         newBadge,
		"key":           elementKey,
		"run":           newRunName,
		"last":          lastAttempt,
		"why":           why,
		"slots":         slotMarks,
		"few":           newFewNames,
		"linked":        func(name any) bool { return linked(name, mostNameLink) },
		"reachable":     func(name any) bool { return linked(name, 3*space.MaxName) },
		"short":         func(name any) string { return shorten(fmt.Sprint(name), 60) },
		"brief":         func(text any) string { return shorten(fmt.Sprint(text), 300) },
		"plural":        plural,
		"text":          func(t admin.Text) string { return string(t) },
		"purpose":       func(h admin.Holder) string { return h.Purpose() },
		"waiter":        func(w admin.Wait) string { return w.Purpose() },
		"locks":         func(h admin.Holder) []string { return h.Locks() },
		"rate":          admin.Rate,
		"schedule":      scheduleOf,
		"blockingRun":   blockingRun,
		"firstBlockers": func(w admin.Wait) []admin.Blocker { return w.Blockers[:min(len(w.Blockers), mostBlockers)] },
		"moreBlockers":  func(w admin.Wait) int { return max(0, len(w.Blockers)-mostBlockers) },
		"firstWorkers":  func(all []admin.Replica) []admin.Replica { return all[:min(len(all), mostWorkers)] },
		"moreWorkers":   func(all []admin.Replica) int { return max(0, len(all)-mostWorkers) },
		"lastAttempts":  func(all []admin.Attempt) []admin.Attempt { return all[max(0, len(all)-axisMost):] },
		"sub":           func(to time.Time, from admin.Instant) string { return admin.Span(to.Sub(from.Time)) },
		"table":         func(v *view, items any) map[string]any { return map[string]any{"Now": v.Now, "Items": items} },
		"history": func(v *view, here string, p past) map[string]any {
			return map[string]any{"Now": v.Now, "Here": here, "Text": v.Asked.Get("at"), "Past": p}
		},
		"firstHolder": firstHolder,
		"actLink":     link.actLink,
		"queues":      queuesOf,
		"entry":       func(e admin.Entry) string { return e.Purpose() },
		"entryLocks":  func(e admin.Entry) []string { return e.Locks() },
		"few10":       func(list []admin.ConfigProblem) []admin.ConfigProblem { return list[:min(len(list), 10)] },
		"more10":      func(list []admin.ConfigProblem) int { return len(list) - 10 },
	}).ParseFS(files, "page/*.html"))
}

const (
	pageRows = 50 // of a list on a page, and the most that a client may ask for

	mostBlockers = 3
	mostWorkers  = 30 // on the overview
)

// linker makes the links of the pages, below the path under which clients reach the server: "" or,
// behind a reverse proxy, a path without a slash at its end.
type linker string

// path returns the path of a page: the segments are escaped.
func (l linker) path(segments ...any) string {
	if len(segments) == 0 {
		return string(l) + "/"
	}
	path := string(l)
	for _, segment := range segments {
		path += "/" + url.PathEscape(fmt.Sprint(segment))
	}
	return path
}

// entry is a page in the navigation.
type entry struct {
	Name, Title, Path string
	Key               string // opens the page, after "g"
}

func (l linker) menu() []entry {
	entries := []entry{
		{"", "Overview", "", "o"}, {"jobs", "Jobs", "", "j"}, {"runs", "Runs", "", "r"}, {"locks", "Locks", "", "l"},
		{"timeline", "Timeline", "", "t"}, {"workers", "Workers", "", "w"}, {"queues", "Queues", "", "q"}, {"config", "Config", "", "c"}, {"audit", "Audit", "", "a"},
	}
	for i := range entries {
		if name := entries[i].Name; name != "" {
			entries[i].Path = l.path(name)
		} else {
			entries[i].Path = l.path()
		}
	}
	return entries
}

// link returns the linker of this server.
func (s *Server) link() linker { return linker(s.base()) }

// view is the data of the template of a page.
type view struct {
	Page   string // its entry in the navigation
	Title  string
	Now    time.Time // by Redis' clock; zero when nothing was read
	Worker string    // the worker that serves the page
	Again  string    // the page's own address; "" for one that must not be loaded again
	Here   string    // its address without the query
	Live   string    // the sections of the state that the page shows
	Asked  url.Values
	May    bool // the user may act: the page has buttons
	Admin  bool // and may do what only an admin may

	Filter   []filterField
	Filtered bool // the list is filtered

	// Reading is not nil if the page lacks what depends on all jobs, which are still being read.
	Reading *admin.ReadingError
	Problem string // why Redis cannot be read, or what is wrong with the request; "" for neither
	Remedy  string
	Failed  bool // the page is nothing but its problem

	// of the worker, when its last reload was refused or it must be restarted; else nil
	Config *admin.Config
	Seen   any // what the page is about; on the overview nil when nothing was read yet
}

// show registers a page, by the name of its template. It takes the parameters in known.
func (s *Server) show(pattern, name string, read func(context.Context, question, *view) error, known ...string) {
	s.handle(pattern, func(w http.ResponseWriter, r *http.Request) error {
		q, err := ask(r, known...)
		if err != nil {
			return err
		}
		if !q.query.Has("limit") {
			q.limit = pageRows
		} else if q.limit > pageRows {
			return fmt.Errorf("%w: limit %d: a page shows at most %d rows; the API has longer lists", admin.ErrInvalid, q.limit, pageRows)
		}
		q.page = true
		v := s.newView(r, name)
		v.Asked = q.query
		if err := read(r.Context(), q, v); err != nil && !errors.As(err, &v.Reading) {
			return err
		}
		return s.render(w, http.StatusOK, name, v)
	})
}

func (s *Server) newView(r *http.Request, page string) *view {
	return &view{Page: page, Worker: s.o.Worker(), Again: string(s.link()) + r.URL.RequestURI(), Here: string(s.link()) + r.URL.EscapedPath(), May: s.may(r, RoleOperator), Admin: s.may(r, RoleAdmin)}
}

// shows has the sections of the state, as in the events, that the templates show. The script of a
// page loads it again when one of them changes.
var shows = map[string][]string{
	"overview": {inWorkers, inLocks, inWaits, inJobs, inRuns, inConfig},
	"jobs":     {inJobs, inRuns, inAudit},
	"job":      {inLocks, inWaits, inJobs, inRuns, inAudit},
	"next":     {inJobs, inAudit},
	"explain":  {inJobs, inRuns},
	"runs":     {inLocks, inWaits, inRuns},
	"run":      {inLocks, inWaits, inRuns},
	"locks":    {inLocks, inWaits},
	"lock":     {inLocks, inWaits},
	"timeline": {inLocks, inWaits},
	"workers":  {inWorkers},
	"worker":   {inWorkers, inLocks},
	"queues":   {inWorkers, inRuns, inAudit},
	"config":   {inWorkers, inJobs, inConfig},
	"audit":    {inAudit},
	"problem":  sections,
}

// render sends a page.
func (s *Server) render(w http.ResponseWriter, status int, name string, v *view) error {
	v.Live = strings.Join(shows[name], " ")
	var body bytes.Buffer
	if err := s.templates().ExecuteTemplate(&body, name+".html", v); err != nil {
		return errors.Join(errBroken, err)
	}
	write(w, status, "text/html; charset=utf-8", body.Bytes())
	return nil
}

// remedies are what a person can do about a problem.
var remedies = map[int]string{
	http.StatusNotFound:            "It may have ended, and its history may no longer be kept. The pages above list what exists now.",
	http.StatusBadRequest:          "Correct the address, or begin with one of the pages above.",
	http.StatusConflict:            "Nothing was done. The page of the thing shows its present state.",
	http.StatusServiceUnavailable:  "This page tries again by itself. Running work continues as long as its worker's lease allows.",
	http.StatusInternalServerError: "The log of the worker that serves this page has the reason.",
}

// problemPage answers a browser with a page about a problem.
func (s *Server) problemPage(w http.ResponseWriter, r *http.Request, status int, detail string) error {
	v := s.newView(r, "")
	v.Title, v.Problem, v.Remedy, v.Failed = http.StatusText(status), detail, remedies[status], true
	if status != http.StatusServiceUnavailable || r.Method == http.MethodPost {
		v.Again = "" // it stays as it is
	}
	return s.render(w, status, "problem", v)
}

// filterField is an input of the form that filters a list.
type filterField struct {
	Name, Label, Value string
	Options            []string // the possible values; none: any text
}

var filterLabels = map[string]string{
	"q": "Find", "job": "Job", "state": "State", "worker": "Worker", "lock": "Lock", "queue": "Queue", "since": "Since", "until": "Until",
	"error": "Error", "note": "Noted as", "group": "Group by",
}

// filterBy gives a page the form of its filters. options has the possible values of some.
func (v *view) filterBy(names []string, options map[string][]string) {
	for _, name := range names {
		value := v.Asked.Get(name)
		v.Filter = append(v.Filter, filterField{name, filterLabels[name], value, options[name]})
		v.Filtered = v.Filtered || value != ""
	}
}

// rows are a part of a list on a page.
type rows[T any] struct {
	Items       []T
	First, Next string // links to other parts; "" for none
}

// newRows returns a part of a list, with the links to other parts.
func newRows[T any](s *Server, q question, p *part[T]) rows[T] {
	link := func(cursor string) string {
		query := make(url.Values)
		for name, values := range q.query {
			query[name] = values
		}
		query.Del("cursor")
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		link := string(s.link()) + q.request.URL.EscapedPath()
		if len(query) > 0 {
			link += "?" + query.Encode()
		}
		return link
	}
	listed := rows[T]{Items: p.Items}
	if q.cursor != "" {
		listed.First = link("")
	}
	if p.NextCursor != nil {
		listed.Next = link(*p.NextCursor)
	}
	return listed
}

// now returns the server's time of at most a moment ago.
func (s *Server) now(ctx context.Context) (time.Time, error) {
	return shared(ctx, s.read, "page now", s.o.Reader.Now)
}

func digest(body []byte) string { return fmt.Sprintf(`"%x"`, sha256.Sum256(body)) }

// elementKey returns the id of an element of a list, the same in every version of its page and on
// every worker: the script of the page finds the element by it when a refresh moves it. The first
// part names the list, since an id is unique in a page. The names in it can be long and have any
// characters, so the id is a hash of them.
func elementKey(parts ...any) string {
	h := fnv.New64a()
	for _, part := range parts {
		fmt.Fprintf(h, "%v\x00", part)
	}
	return "k" + strconv.FormatUint(h.Sum64(), 36)
}

// moment is an instant in words, and exactly.
type moment struct {
	Text   string // "3m 2s ago", "in 12s"; "" for no instant
	ISO    string
	Exact  string
	Clock  string // the time of day
	Minute string // without seconds
}

func relative(t, now time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	t = t.UTC()
	m := moment{
		ISO: admin.Instant{Time: t}.String(), Exact: t.Format("Mon 2006-01-02 15:04:05.000 UTC"), Clock: t.Format("15:04:05 UTC"),
		Minute: t.Format("2006-01-02 15:04 UTC"),
	}
	switch d := now.Sub(t); {
	case d > -time.Second && d < time.Second:
		m.Text = "now"
	case d > 0:
		m.Text = admin.Span(d) + " ago"
	default:
		m.Text = "in " + admin.Span(-d)
	}
	return m
}

func took(r *admin.Run) string {
	if r.StartedAt.IsZero() || r.FinishedAt.IsZero() {
		return ""
	}
	return admin.Span(r.FinishedAt.Sub(r.StartedAt.Time))
}

// badge is a state with its own sign, so that no reader needs to tell colors apart.
type badge struct {
	Sign, Word string
	Kind       string // class of the style sheet: good, bad, busy, warn, idle
}

// tones are the classes of the tones of states, where they differ from the tone's name.
var tones = map[ledger.Tone]string{ledger.ToneNext: "busy", ledger.TonePassed: "idle"}

func newBadge(state any) badge {
	word := fmt.Sprint(state)
	sign, tone := admin.SignOf(word)
	return badge{Sign: sign, Word: word, Kind: cmp.Or(tones[tone], string(tone))}
}

// runName is a run's id in two parts: its job, and the rest, which distinguishes the job's runs.
type runName struct {
	ID, Job, Rest string
	Linked        bool
}

func newRunName(id any) runName {
	text := fmt.Sprint(id)
	job := jobs.RunID(text).Job()
	return runName{text, shorten(job, 80), shorten(strings.TrimPrefix(text, job), 220), linked(text, mostLink)}
}

func lastAttempt(r admin.Run) *admin.Attempt {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// why returns what went wrong with a run, or why it does not run; "" for neither.
func why(r admin.Run) string {
	if w := r.WaitingFor; w != nil && (r.State == ledger.StateDue || w.Reason == admin.WaitsPaused || w.Reason == admin.WaitsHandler) {
		return shorten(w.Text, 300)
	}
	if r.Reason != "" {
		return shorten(string(r.Reason), 300)
	}
	if last := lastAttempt(r); last != nil && r.State != ledger.StateSucceeded {
		return shorten(string(last.Error), 300)
	}
	return ""
}

const mostMarks = 32 // a worker with more slots shows only its numbers

// slotMarks returns one mark for each slot of a worker: true if it is busy.
func slotMarks(w admin.Worker) []bool {
	if w.Slots > mostMarks {
		return nil
	}
	marks := make([]bool, w.Slots)
	for i := range min(w.Busy, w.Slots) {
		marks[i] = true
	}
	return marks
}

// fewNames is a list of names of which the page shows the first ones.
type fewNames struct {
	Names []string
	More  int
	Rest  string // the others, for a tooltip
}

func newFewNames(names []string) fewNames {
	const most, mostRest = 4, 5
	few := fewNames{Names: names[:min(len(names), most)]}
	rest := names[len(few.Names):]
	few.More = len(rest)
	for i, name := range rest[:min(len(rest), mostRest)] {
		if i > 0 {
			few.Rest += "\n"
		}
		few.Rest += shorten(name, 60)
	}
	if few.More > mostRest {
		few.Rest += fmt.Sprintf("\nand %d more", few.More-mostRest)
	}
	return few
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// linked reports whether a list links to the page of a name. Very long names would make a page too
// large, and no path has the segments "." and "..".
func linked(name any, most int) bool {
	text := fmt.Sprint(name)
	return text != "" && text != "." && text != ".." && len(url.PathEscape(text)) <= most
}

// bytes of an escaped name in a link
const (
	mostLink     = 400
	mostNameLink = 200 // in a list of many names
)

// shorten cuts a text to a number of characters.
func shorten(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// sentence makes a sentence of a clause.
func sentence(clause string) string {
	first, size := utf8.DecodeRuneInString(clause)
	return string(unicode.ToUpper(first)) + clause[size:] + "."
}

// scheduleOf describes when a job runs.
func scheduleOf(job admin.Job) string {
	words := string(cmp.Or(job.Words, job.Schedule))
	if words == "" {
		return "by request, or by hand"
	}
	if job.Timezone != "" && job.Every == nil {
		words += ", " + string(job.Timezone)
	}
	return words
}

// blockingRun returns the name of a blocker that is a run, or nil.
func blockingRun(b admin.Blocker) *runName {
	if name := newRunName(b.ID); name.Job != "" {
		return &name
	}
	return nil
}
