package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// watcher is a client of the events in a synctest bubble.
type watcher struct {
	t     *testing.T
	leave func()
	ended chan struct{}

	mu     sync.Mutex
	header http.Header
	status int
	text   strings.Builder // what was sent and not taken; guarded by mu
}

func (w *watcher) Header() http.Header    { return w.header }
func (w *watcher) WriteHeader(status int) { w.status = status }
func (w *watcher) Flush()                 {}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

// take returns what was sent since the last call.
func (w *watcher) take() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.text.Reset()
	return w.text.String()
}

// watch follows the events of a server until the test leaves.
func watch(t *testing.T, s *Server, lastID string) *watcher {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	w := &watcher{t: t, leave: leave, ended: make(chan struct{}), header: make(http.Header)}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9620/api/v1/events", nil)
	r.Header.Set("Last-Event-ID", lastID)
	go func() {
		defer close(w.ended)
		s.ServeHTTP(w, r)
	}()
	synctest.Wait()
	return w
}

// change changes what the streams of a server read. Each look of theirs takes this lock first.
func change(s *Server, do func()) {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	do()
}

// sent is an event as a client reads it.
type sent struct {
	name, id string
	data     map[string]any
}

// sections returns the sections of an event overview.
func (e sent) sections() string {
	var names []string
	for _, name := range e.data["sections"].([]any) {
		names = append(names, name.(string))
	}
	return strings.Join(names, " ")
}

// readEvents parses a text, without its comments.
func readEvents(t *testing.T, text string) []sent {
	t.Helper()
	var events []sent
	for block := range strings.SplitSeq(text, "\n\n") {
		var e sent
		for line := range strings.SplitSeq(block, "\n") {
			switch field, value, _ := strings.Cut(line, ": "); field {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				if err := json.Unmarshal([]byte(value), &e.data); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
			}
		}
		if e.name != "" {
			events = append(events, e)
		}
	}
	return events
}

const everySection = "workers locks waits jobs runs config audit"

// follow lets time pass for one look, and returns the events that were sent.
func (w *watcher) follow() []sent {
	w.t.Helper()
	time.Sleep(lookEvery)
	return readEvents(w.t, w.take())
}

func TestAStreamBeginsWithEverythingAndGoesOnWithChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakes.Fleet()
		s := newServer(t, f)
		w := watch(t, s, "")
		defer func() { w.leave(); <-w.ended }()
		begin := w.take()
		if !strings.HasPrefix(begin, ": lockstep\nretry: 2000\n\n") || w.status != http.StatusOK ||
			w.header.Get("Content-Type") != "text/event-stream" || w.header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("the stream begins with %d, %v, %q", w.status, w.header, begin)
		}
		events := readEvents(t, begin)
		if len(events) != 1 || events[0].name != "overview" || events[0].sections() != everySection {
			t.Fatalf("got %+v, want one overview of all sections", events)
		}
		if events := w.follow(); len(events) != 0 {
			t.Errorf("got %+v although nothing has changed", events)
		}

		// A run ends, another one begins to wait less.
		change(s, func() {
			f.Open = slices.DeleteFunc(f.Open, func(r *ledger.Record) bool { return r.ID == "settle-bills#01K9B7ZK3M5W7QF" })
			f.Ended["settle-bills"] = []*ledger.Record{{
				ID: "settle-bills#01K9B7ZK3M5W7QF", Job: "settle-bills", State: ledger.StateSucceeded, Created: fakes.Noon, Finished: fakes.Noon,
			}}
			f.Listing.Holds = f.Listing.Holds[1:]
		})
		events = w.follow()
		if len(events) != 2 || events[0].name != "run" || events[0].id != "" || events[1].name != "overview" || events[1].id == "" {
			t.Fatalf("got %+v, want a run and an overview, which alone has an id", events)
		}
		if run := events[0].data; run["id"] != "settle-bills#01K9B7ZK3M5W7QF" || run["job"] != "settle-bills" || run["state"] != "succeeded" || run["was"] != "running" {
			t.Errorf("got %v, want the run that ended", run)
		}
		if got := events[1].sections(); got != "workers locks waits runs" {
			t.Errorf("got the sections %q, want those of a hold that ended, of its worker and of a waiter", got)
		}

		if events := w.follow(); len(events) != 0 {
			t.Errorf("got %+v after that", events)
		}

		// Only the times differ.
		change(s, func() { f.Listing.At = f.Listing.At.Add(time.Second) })
		if events := w.follow(); len(events) != 0 {
			t.Errorf("got %+v although only time has passed", events)
		}
		change(s, func() {
			f.Done = []ledger.ActRecord{{ID: "2-0", At: fakes.Noon, Act: ledger.Act{Who: "ann", What: "pause job", On: "warm-cache"}}}
		})
		if events := w.follow(); len(events) != 1 || events[0].sections() != "audit" {
			t.Errorf("got %+v, want an act in the audit", events)
		}
	})
}

func TestAStreamThatIsOpenedAgainGetsWhatItMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakes.Fleet()
		s := newServer(t, f)
		first := watch(t, s, "")
		id := readEvents(t, first.take())[0].id
		first.leave()
		<-first.ended
		act := func(n int) {
			change(s, func() {
				f.Done = []ledger.ActRecord{{ID: fmt.Sprintf("%d-0", n), At: fakes.Noon, Act: ledger.Act{Who: "ann", What: "pause job", On: "warm-cache"}}}
			})
		}
		act(1)
		time.Sleep(2 * lookEvery)
		for lastID, want := range map[string]string{
			id: "audit", "": everySection, "other-1": everySection, s.feed.name + "-99": everySection, s.feed.name + "-x": everySection, s.feed.name + "--1": everySection,
		} {
			w := watch(t, s, lastID)
			events := readEvents(t, w.take())
			if len(events) != 1 || events[0].sections() != want {
				t.Errorf("after %q: got %+v, want the sections %s", lastID, events, want)
			}
			w.leave()
			<-w.ended
		}
		w := watch(t, s, "")
		for n := range revisionsMost + 1 {
			act(n + 2)
			w.follow()
		}
		w.leave()
		<-w.ended
		late := watch(t, s, id)
		if events := readEvents(t, late.take()); len(events) != 1 || events[0].sections() != everySection {
			t.Errorf("after very many revisions: got %+v, want all sections", events)
		}
		late.leave()
		<-late.ended
		if n := len(s.feed.revisions); n != revisionsMost {
			t.Errorf("%d revisions are kept, want %d", n, revisionsMost)
		}
	})
}

func TestAHundredStreamsCostAsManyReadsAsOne(t *testing.T) {
	cost := func(streams int) (reads int64) {
		synctest.Test(t, func(t *testing.T) {
			f := fakes.Fleet()
			s := newServer(t, f)
			watchers := make([]*watcher, streams)
			for i := range watchers {
				watchers[i] = watch(t, s, "")
			}
			time.Sleep(10 * time.Second)
			for _, w := range watchers {
				w.leave()
				<-w.ended
			}
			reads = f.ReadCount.Load()
			time.Sleep(time.Minute)
			if n := f.ReadCount.Load(); n != reads {
				t.Errorf("%d reads for no client", n-reads)
			}
			if s.feed.streams != 0 {
				t.Errorf("%d streams count when all have ended", s.feed.streams)
			}
		})
		return reads
	}
	if one, many := cost(1), cost(100); one == 0 || many != one {
		t.Errorf("100 streams cost %d reads, one costs %d", many, one)
	}
}

func TestAnOutageIsAnEventAndSoIsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakes.Fleet()
		f.Fail("connection refused")
		s := newServer(t, f)
		w := watch(t, s, "")
		defer func() { w.leave(); <-w.ended }()
		problem := func(status float64, detail string) {
			t.Helper()
			events := readEvents(t, w.take())
			if len(events) != 1 || events[0].name != "problem" || events[0].data["status"] != status || !strings.Contains(events[0].data["detail"].(string), detail) {
				t.Errorf("got %+v, want the problem %v", events, status)
			}
		}
		problem(503, "Redis cannot be read: connection refused")
		if events := w.follow(); len(events) != 0 {
			t.Errorf("got %+v, want a problem once", events)
		}
		f.FailWith(replied("NOPERM this user has no permissions to run the 'evalsha' command"))
		time.Sleep(lookEvery)
		problem(500, "lockstep doctor")
		f.Recover()
		if events := w.follow(); len(events) != 1 || events[0].sections() != everySection {
			t.Errorf("got %+v, want the first overview", events)
		}
		f.Fail("connection refused")
		time.Sleep(lookEvery)
		problem(503, "connection refused")
		f.Recover()
		if events := w.follow(); len(events) != 1 || events[0].name != "overview" || events[0].sections() != "" {
			t.Errorf("got %+v, want an overview without sections: nothing has changed", events)
		}
	})
}

func TestAQuietStreamHasAHeartbeatWhichSignsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, fakes.Fleet())
		var removed atomic.Bool
		s.o.SignIn = &SignIn{mode: AuthBasic, who: func(*http.Request) (identity, error) {
			if removed.Load() {
				return identity{}, errSignIn
			}
			return identity{"ann", RoleAdmin}, nil
		}}
		w := watch(t, s, "")
		w.take()
		time.Sleep(heartbeat + lookEvery)
		if got := w.take(); got != ":\n\n" {
			t.Errorf("got %q in the time of a heartbeat, want one comment", got)
		}
		removed.Store(true)
		time.Sleep(heartbeat + lookEvery)
		select {
		case <-w.ended:
		default:
			t.Error("a user that was removed keeps its stream")
			w.leave()
			<-w.ended
		}
		if w := get(s, "/api/v1/events"); w.Code != http.StatusUnauthorized {
			t.Errorf("got %d without a sign-in, want 401", w.Code)
		}
	})
}

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, fakes.Fleet())
		watchers := make([]*watcher, streamsMost)
		for i := range watchers {
			watchers[i] = watch(t, s, "")
		}
		refused := get(s, "/api/v1/events")
		checkProblem(t, refused, http.StatusServiceUnavailable, "128 clients")
		if refused.Header().Get("Retry-After") == "" {
			t.Error("the refusal has no Retry-After")
		}
		watchers[0].leave()
		<-watchers[0].ended
		w := watch(t, s, "")
		if got := w.take(); !strings.Contains(got, "event: overview") {
			t.Errorf("got %q when there is room again", got)
		}
		for _, w := range append(watchers[1:], w) {
			w.leave()
			<-w.ended
		}
		if w := request(s, http.MethodHead, "/api/v1/events"); w.Code != http.StatusOK || w.Body.Len() != 0 {
			t.Errorf("HEAD: got %d and %q", w.Code, w.Body)
		}
	})
}

func TestManyChangesAtOnceAreCounted(t *testing.T) {
	t.Parallel()
	f := newFeed()
	f.note(fakes.Noon, nil, make(map[jobs.RunID]runChange))
	runs := make(map[jobs.RunID]runChange)
	for i := range changesMost + 5 {
		id := jobs.RequestRunID("bills", fmt.Sprintf("%03d", i))
		runs[id] = runChange{ID: id, Job: "bills", State: ledger.StateRunning, at: fakes.Noon.Add(time.Second)}
	}
	old := jobs.RunID("bills#old") // it came into view
	runs[old] = runChange{ID: old, Job: "bills", State: ledger.StateDue, at: fakes.Noon.Add(-time.Hour)}
	f.note(fakes.Noon.Add(2*time.Second), nil, runs)
	text, last := f.since(1)
	events := readEvents(t, text)
	if last != 2 || len(events) != changesMost+1 || events[0].data["id"] != "bills#000" || strings.Contains(text, "bills#old") {
		t.Fatalf("got %d events up to revision %d, the first %+v", len(events), last, events[0])
	}
	if e := events[changesMost]; e.data["more_runs"] != 5.0 || e.sections() != "runs" {
		t.Errorf("got %+v, want 5 more runs", e)
	}
}

// followed is a client of the events over a socket.
type followed struct {
	t      *testing.T
	reader *bufio.Reader
}

func newFollowed(t *testing.T, url string) *followed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		t.Fatalf("got %s", response.Status)
	}
	return &followed{t, bufio.NewReader(response.Body)}
}

// until reads the stream up to a line with this text, and returns what it read.
func (f *followed) until(text string) string {
	f.t.Helper()
	var all strings.Builder
	for {
		line, err := f.reader.ReadString('\n')
		all.WriteString(line)
		if err != nil {
			f.t.Fatalf("%v after %q, want %q", err, all.String(), text)
		}
		if strings.Contains(line, text) {
			return all.String()
		}
	}
}

// The deadlines of usual requests do not end a stream, and what happens in Redis arrives.
func TestEventsOutliveTheDeadlinesOfRequests(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	server := httptest.NewUnstartedServer(c.server)
	const limit = 2 * time.Second
	server.Config.ReadTimeout, server.Config.WriteTimeout = limit, limit
	server.Start()
	defer server.Close()
	defer server.CloseClientConnections() // Close waits for the stream
	began := time.Now()
	f := newFollowed(t, server.URL)
	f.until("event: overview")
	client := c.Open("w", nil)
	due := c.Enqueue(c.job, "x", `{}`)
	f.until(`"id":"nightly#x","job":"nightly","state":"due","was":null`)
	_, hold := c.Begin(client, due)
	f.until(`"id":"nightly#x","job":"nightly","state":"running","was":"due"`)
	if got := f.until("event: overview") + f.until("data:"); !strings.Contains(got, "locks") || !strings.Contains(got, "runs") {
		t.Errorf("got %q, want locks and runs among the sections", got)
	}
	if _, err := client.Acquire(t.Context(), locks.Exclusive("bill:1")); err != nil {
		t.Fatal(err)
	}
	f.until(`"locks"`)
	for paused := false; time.Since(began) < 2*limit; paused = !paused {
		c.post("/api/v1/jobs/nightly/"+map[bool]string{true: "resume", false: "pause"}[paused], "", http.StatusOK)
		f.until(`"audit"`)
	}
	_ = hold.Release() // only its session matters
}

func TestStreamsEndWhenTheServerStops(t *testing.T) {
	t.Parallel()
	url, stop := serve(t, newServer(t, fakes.Fleet()))
	streams := []*followed{newFollowed(t, url), newFollowed(t, url)}
	for _, f := range streams {
		f.until("event: overview")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, f := range streams {
		if _, err := io.Copy(io.Discard, f.reader); err != nil {
			t.Errorf("the stream ends with %v, want an orderly end", err)
		}
	}
}

// At the limit of connections, a stream makes room, and its client notices.
func TestAStreamMakesRoomForARequest(t *testing.T) {
	t.Parallel()
	listener := take(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	limit := newConnLimit(1, 0)
	go func() { served <- serveLimited(ctx, listener, newServer(t, fakes.Fleet()), limit) }()
	url := "http://" + listener.Addr().String()
	f := newFollowed(t, url)
	f.until("data:")
	isQuiet := func() bool {
		limit.mu.Lock()
		defer limit.mu.Unlock()
		for c := range limit.open {
			return c.stage == connQuiet
		}
		return false
	}
	for deadline := time.Now().Add(time.Minute); !isQuiet(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a stream without events does not count as quiet")
		}
	}
	if status, _ := fetch(t, url+"/livez"); status != http.StatusOK {
		t.Errorf("a request beside a stream is answered with %d", status)
	}
	if _, err := io.Copy(io.Discard, f.reader); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stream ends with %v, want a closed connection", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
