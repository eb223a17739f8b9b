package web

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

//go:embed page
var files embed.FS

// pageTemplate is parsed for the first request for the page: most processes of a program serve
// none.
var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page.html").Funcs(template.FuncMap{
		"base":    func() string { return "" }, // each server has its own
		"ago":     func(t admin.Instant, now time.Time) moment { return relative(t.Time, now) },
		"tick":    func(t admin.TickTime, now time.Time) moment { return relative(t.Time, now) },
		"exactly": func(t time.Time) moment { return relative(t, t) },
		"for":     func(s admin.Seconds) string { return admin.Span(time.Duration(s)) },
		"took":    func(r admin.Run) string { return took(&r) },
		"badge":   newBadge,
		"run":     newRunName,
		"last":    lastAttempt,
		"why":     why,
		"slots":   slotMarks,
		"few":     newFewNames,
		"escape":  url.PathEscape,
		"plural":  plural,
		"text":    func(t admin.Text) string { return string(t) },
		"purpose": func(h admin.Holder) string { return h.Purpose() },
		"waiter":  func(w admin.Wait) string { return w.Purpose() },
		"locks":   func(h admin.Holder) []string { return h.Locks() },
		"few10":   func(list []admin.ConfigProblem) []admin.ConfigProblem { return list[:min(len(list), 10)] },
		"more10":  func(list []admin.ConfigProblem) int { return len(list) - 10 },
		"paths":   func() []string { return []string{"workers", "locks", "waits", "jobs", "runs"} },
	}).ParseFS(files, "page/page.html"))
})

// view is the data of the template.
type view struct {
	Seen    *admin.Overview // nil: nothing was read yet
	Worker  string          // the worker that serves the page
	Problem string          // why Redis cannot be read; "" when it can
	// of the worker, when its last reload was refused or it must be restarted; else nil
	Config *admin.Config
}

// page answers with the overview. When Redis cannot be read it shows the last overview and says so.
func (s *Server) page(w http.ResponseWriter, r *http.Request) error {
	v := view{Worker: s.o.Worker()}
	if config := s.config(); wasRefused(config) || config != nil && len(config.NeedsRestart) > 0 {
		v.Config = config
	}
	status := http.StatusOK
	seen, err := shared(r.Context(), s.read, "overview", s.overview)
	if err == nil {
		s.last.Store(seen)
	} else {
		status, seen, v.Problem = http.StatusServiceUnavailable, s.last.Load(), err.Error()
		if space.Refused(err) {
			status = http.StatusInternalServerError
		} else {
			w.Header().Set("Retry-After", "1")
		}
	}
	v.Seen = seen
	var body bytes.Buffer
	if err := s.templates().Execute(&body, v); err != nil {
		return errors.Join(errBroken, err)
	}
	write(w, status, "text/html; charset=utf-8", body.Bytes())
	return nil
}

func digest(body []byte) string { return fmt.Sprintf(`"%x"`, sha256.Sum256(body)) }

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
type runName struct{ ID, Job, Rest string }

func newRunName(id any) runName {
	text := fmt.Sprint(id)
	job := jobs.RunID(text).Job()
	return runName{text, job, strings.TrimPrefix(text, job)}
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
		return w.Text
	}
	if r.Reason != "" {
		return string(r.Reason)
	}
	if last := lastAttempt(r); last != nil && r.State != ledger.StateSucceeded {
		return string(last.Error)
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
	const most, mostRest = 4, 50
	few := fewNames{Names: names[:min(len(names), most)]}
	rest := names[len(few.Names):]
	few.More = len(rest)
	few.Rest = strings.Join(rest[:min(len(rest), mostRest)], "\n")
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
