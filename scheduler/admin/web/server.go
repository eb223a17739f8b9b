package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/repeats"
	"lockstep/scheduler/worker"
)

// Options configure a [Server]. Reader is required.
type Options struct {
	Reader *admin.Reader

	// Operator carries out requested acts. Default: nothing can be changed, and the paths for acts
	// do not exist.
	Operator *admin.Operator

	// SignIn decides which clients have access. Default: all, for a server that only this machine
	// reaches.
	SignIn *SignIn

	// BasePath is the path under which a reverse proxy shows the server, such as /lockstep: see
	// admin.base_path. Default: /.
	BasePath string

	// ReadOnly makes every user a viewer. It does not affect Pass.
	ReadOnly bool

	// Hosts are names, in lower case and without a port, under which clients reach the server: see
	// admin.hosts. Addresses and localhost need not be listed. Default: none.
	Hosts []string

	// Pass lets a client that sends it, as Authorization: Lockstep PASS, reload the config, and
	// nothing else. The command line reads it from Redis. Default: none.
	Pass string

	// Unready returns why the worker of this process may take no runs now, or nil. An error that is
	// a [worker.ErrRedis] also makes lockstep_redis_up 0. Default: nil, for a process that has no
	// worker.
	Unready func() error

	// Worker returns the id of this process' worker, which the page names; "" if it has none yet.
	// Default: none.
	Worker func() string

	// Config returns a description of the worker's config. Default: nothing.
	Config func() *admin.Config

	// Reload loads the worker's config again, or keeps the old one: then Config has the reasons,
	// and the error is nil. Default: reloading is not possible.
	Reload func(ctx context.Context) error

	// Check returns what Reload would do, without doing it. Default: checking is not possible.
	Check func(ctx context.Context) (*admin.ConfigCheck, error)

	// Metrics are the counts of this process' worker. Default: none, for a process that has no
	// worker.
	Metrics *Metrics

	Logger *slog.Logger // default: slog.Default
}

// Server answers requests for the API, the probes and the page. Run it by [Server.Serve], or use it
// as any [http.Handler]. It has goroutines of its own only during [Server.Serve].
type Server struct {
	o     Options
	mux   *http.ServeMux
	table []*route // of mux; complete before the first request
	read  *share
	feed  *feed

	described func() ([]byte, error) // makes the document of the API once

	foreign *http.CrossOriginProtection // checks the requests that change something

	told  rate.Sometimes         // limits logging of Redis' refusals
	lines *repeats.Counter[line] // of actions, done and refused

	waiting   atomic.Int64 // requests that wait for the end of their run
	followers atomic.Int64 // clients that follow output

	// last is the last overview that could be read from Redis; nil before that. It is replaced,
	// never changed.
	last atomic.Pointer[admin.Overview]

	// templates returns those of the pages. They are parsed for the first request for a page: most
	// processes of a program serve none.
	templates func() *template.Template
}

// New returns a server. It reads nothing yet.
func New(o Options) (*Server, error) {
	if o.Reader == nil {
		return nil, errors.New("web: Options.Reader is required")
	}
	if o.Unready == nil {
		o.Unready = func() error { return nil }
	}
	if o.SignIn == nil {
		o.SignIn = &SignIn{mode: AuthNone, who: everyone, doubts: noDoubts}
	}
	if o.Worker == nil {
		o.Worker = func() string { return "" }
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.BasePath = strings.TrimSuffix(o.BasePath, "/")
	s := &Server{o: o, mux: http.NewServeMux(), read: newShare(), feed: newFeed(), lines: repeats.NewCounter[line](lineSpan, lineKinds), foreign: http.NewCrossOriginProtection(), told: rate.Sometimes{Interval: time.Second}}
	s.described = sync.OnceValues(s.document)
	s.templates = sync.OnceValue(func() *template.Template { return parsePages(s.link()) })
	s.pages()
	s.handle("/static/{file}", s.static)
	s.handle("/livez", s.live)
	s.handle("/readyz", s.ready)
	s.handle("/metrics", s.metrics())
	s.routes()
	s.acts()
	s.handle("/", func(http.ResponseWriter, *http.Request) error { return errNoPath })
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	// Allow nothing of another origin, no inline code and no framing: output of runs ends up on
	// this page.
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "+
		"img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	r = s.relative(r)
	user, err := s.admit(r)
	if err != nil {
		s.refuse(w, r, line{who: asker(r), action: "request", on: r.URL.Path}, err)
		return
	}
	if escaped := r.URL.EscapedPath(); s.base() != "" && escaped != path.Clean(escaped) {
		s.problem(w, r, errNoPath) // the mux would redirect it to a path without the base path
		return
	}
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
}

// base returns the beginning of all links to this server: its base path, or "".
func (s *Server) base() string { return s.o.BasePath }

// relative returns a request with its path below the base path. A path without the base path stays:
// a proxy may have removed it, and clients that reach the server directly need not know it.
func (s *Server) relative(r *http.Request) *http.Request {
	base := s.base()
	if base == "" || r.URL.Path != base && !strings.HasPrefix(r.URL.Path, base+"/") {
		return r
	}
	below := *r.URL
	below.Path, below.RawPath = cmp.Or(r.URL.Path[len(base):], "/"), ""
	if escaped, ok := strings.CutPrefix(r.URL.RawPath, base+"/"); ok {
		below.RawPath = "/" + escaped
	}
	copied := r.WithContext(r.Context())
	copied.URL = &below
	return copied
}

// reloadPath is the path to which the command line sends its ticket.
const reloadPath = "/api/v1/config/reload"

// isProbe reports whether a request is for one of the paths that machines read, under any name and
// without signing in.
func isProbe(r *http.Request) bool { return slices.Contains(probes, r.URL.Path) }

var probes = []string{"/livez", "/readyz", "/metrics"}

// admit returns the user that sent a request. Probes come first: /readyz is answered even while a
// file of the sign-in cannot be read.
func (s *Server) admit(r *http.Request) (identity, error) {
	if isProbe(r) {
		return identity{}, nil
	}
	if r.URL.Path == reloadPath {
		if pass, ok := authorization(r, "Lockstep"); ok && s.o.Pass != "" && sameText(pass, s.o.Pass) {
			return identity{commandLine(r), RoleAdmin}, nil
		}
	}
	if s.o.SignIn.closed {
		return identity{}, errClosed
	}
	if err := errors.Join(s.checkHost(r), s.checkDirect(r)); err != nil {
		return identity{}, err
	}
	user, err := s.o.SignIn.who(r)
	if s.o.ReadOnly {
		user.role = RoleViewer
	}
	return user, err
}

// handle registers the handler of a path. An error of answer becomes a problem, so answer must not
// have written anything then.
func (s *Server) handle(pattern string, answer func(http.ResponseWriter, *http.Request) error) *route {
	least := RoleViewer // as every user
	if slices.Contains(probes, pattern) {
		least = ""
	}
	return s.register(http.MethodGet, pattern, least, func(w http.ResponseWriter, r *http.Request) {
		var err error
		if pattern != "/" && r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			err = errMethod
		} else {
			err = answer(w, r)
		}
		if err != nil {
			s.problem(w, r, err)
		}
	})
}

var (
	errNoPath   = errors.New("this path does not exist")
	errMethod   = errors.New("this path takes only GET and HEAD: it changes nothing")
	errOnlyPost = errors.New("this path takes only POST: it changes something")
)

// problem answers with an error, and returns the status.
func (s *Server) problem(w http.ResponseWriter, r *http.Request, err error) int {
	status := http.StatusServiceUnavailable
	detail := err.Error()
	throttled, tooSoon := errors.AsType[*throttledError](err)
	switch {
	case tooSoon:
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", strconv.Itoa(throttled.seconds()))
	case errors.Is(err, errSignIn):
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", s.o.SignIn.challenge)
	case errors.Is(err, errStreams):
		w.Header().Set("Retry-After", "10")
	case errors.Is(err, errUnchecked):
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, errOrigin), errors.Is(err, errRole), errors.Is(err, errClosed), errors.Is(err, errHost), errors.Is(err, errForwarded):
		status = http.StatusForbidden
	case errors.Is(err, errMethod), errors.Is(err, errOnlyPost):
		status = http.StatusMethodNotAllowed
	default:
		if status = statusOf(err); status >= http.StatusInternalServerError {
			detail = s.failed(w, r, err)
		}
	}
	if isAdmitted(r) && wantsPage(r) && s.problemPage(w, r, status, detail) == nil {
		return status
	}
	writeProblem(w, r, status, detail)
	return status
}

// statusOf returns the status for an error that says what is wrong with a request, or with Redis.
func statusOf(err error) int {
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case errors.Is(err, ledger.ErrPending):
		return http.StatusAccepted
	case errors.Is(err, errNoPath), errors.Is(err, ledger.ErrUnknown), errors.Is(err, queue.ErrNoQueue), errors.Is(err, ErrNoConfig):
		return http.StatusNotFound
	case errors.Is(err, ledger.ErrRefused), errors.Is(err, jobs.ErrSignature), errors.Is(err, jobs.ErrUnknownKeys), errors.Is(err, queue.ErrOwned), errors.Is(err, errOtherWorker), errors.Is(err, locks.ErrStale):
		return http.StatusConflict
	case tooLarge, errors.Is(err, jobs.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, admin.ErrInvalid), errors.Is(err, locks.ErrInvalid), jobs.IsPermanent(err):
		return http.StatusBadRequest
	case errors.Is(err, errBroken), space.Refused(err): // trying again gives the same error
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable // all errors without a case come from Redis
}

// failed returns the detail of an error that is no fault of the client, and logs it.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) string {
	switch {
	case errors.Is(err, errBroken):
		s.o.Logger.ErrorContext(r.Context(), "admin request failed", "path", r.URL.Path, "error", err)
		return err.Error()
	case space.Refused(err):
		if allows(&s.told) { // pages ask again and again
			s.o.Logger.ErrorContext(r.Context(), "Redis refuses what an admin request needs", "path", r.URL.Path, "error", err)
		}
		return "Redis refuses this: " + err.Error() + "; lockstep doctor looks for the reason"
	}
	w.Header().Set("Retry-After", "1")
	if r.Method == http.MethodPost {
		return "Redis cannot be written to: " + err.Error()
	}
	return "Redis cannot be read: " + err.Error()
}

// problem is the body of an answer with an error, as defined by RFC 9457.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Instance string `json:"instance"`
}

// writeProblem answers with a problem, or with a small page where a browser asks for one.
func writeProblem(w http.ResponseWriter, r *http.Request, status int, detail string) {
	if wantsPage(r) {
		var body bytes.Buffer
		if err := problemTemplate().Execute(&body, map[string]any{"Status": status, "Title": http.StatusText(status), "Detail": detail}); err != nil {
			panic("web: a problem is plain data: " + err.Error())
		}
		write(w, status, "text/html; charset=utf-8", body.Bytes())
		return
	}
	body, err := json.Marshal(problem{"about:blank", http.StatusText(status), status, detail, r.URL.EscapedPath()})
	if err != nil {
		panic("web: a problem is plain data: " + err.Error())
	}
	write(w, status, "application/problem+json", append(body, '\n'))
}

// wantsPage reports whether a person looks at the answer: a browser that opens a path outside the
// API.
func wantsPage(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html") && !strings.HasPrefix(r.URL.Path, "/api/")
}

// problemTemplate is for clients without access. It needs no style sheet: they cannot fetch one.
var problemTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("problem").Parse(`<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{{.Title}} · lockstep</title></head>
<body>
<main>
<h1>{{.Title}}</h1>
<p role="alert">{{.Detail}}</p>
</main>
</body>
</html>
`))
})

// errBroken is returned when a reply could not be made although everything was read: a bug in
// this package.
var errBroken = errors.New("the reply could not be made")

// write sends a complete answer. An error means that the client has disconnected, and is ignored.
func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = io.Copy(w, bytes.NewReader(body))
}

const plainText = "text/plain; charset=utf-8"

// live reports that the process serves. It does not ask Redis: see the package's doc.
func (s *Server) live(w http.ResponseWriter, _ *http.Request) error {
	write(w, http.StatusOK, plainText, []byte("ok\n"))
	return nil
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) error {
	switch err := s.o.Unready(); {
	case err == nil:
		write(w, http.StatusOK, plainText, []byte("ready\n"))
	// the rest may name addresses, and probes are open to all clients
	case errors.Is(err, worker.ErrRedis):
		write(w, http.StatusServiceUnavailable, plainText, []byte("not ready: "+worker.ErrRedis.Error()+"; the log has the reason\n"))
	default:
		write(w, http.StatusServiceUnavailable, plainText, []byte("not ready: "+err.Error()+"\n"))
	}
	return nil
}

// snapshot returns the lock space as it was at most a moment ago.
func (s *Server) snapshot(ctx context.Context) (*admin.Snapshot, error) {
	return shared(ctx, s.read, "snapshot", s.o.Reader.Snapshot)
}

// overview returns what the page shows.
func (s *Server) overview(ctx context.Context) (*admin.Overview, error) {
	return s.overviewBy(ctx, "overview", s.o.Reader)
}

// pageOverview is overview for a person who waits: it may lack what depends on all jobs.
func (s *Server) pageOverview(ctx context.Context) (*admin.Overview, error) {
	if seen, is := s.read.has("overview").(*admin.Overview); is {
		return seen, nil
	}
	return s.overviewBy(ctx, "page overview", s.o.Reader.Hasty(patience))
}

func (s *Server) overviewBy(ctx context.Context, name string, r *admin.Reader) (*admin.Overview, error) {
	return shared(ctx, s.read, name, func(ctx context.Context) (*admin.Overview, error) {
		snapshot, err := s.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		return r.Overview(ctx, snapshot)
	})
}

// static answers with the files that the page needs.
func (s *Server) static(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("file")
	contentType := map[string]string{
		"page.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "htmx.min.js": "text/javascript; charset=utf-8",
		"icon.svg": "image/svg+xml",
	}[name]
	if contentType == "" {
		return errNoPath
	}
	body, err := files.ReadFile("page/" + name)
	if err != nil {
		return errors.Join(errBroken, err)
	}
	etag := digest(body)
	// cached but revalidated: a new version of the program has new files
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", etag)
	if strings.Contains(r.Header.Get("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	write(w, http.StatusOK, contentType, body)
	return nil
}
