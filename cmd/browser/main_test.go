package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/admin/web"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// waitLimit is how long a test waits for what must come: chromium is slow on a busy machine.
const waitLimit = 2 * time.Minute

func TestMain(m *testing.M) { redistest.Main(m) }

// site is a server of the pages on a real ledger, with a worker whose run holds bill:1001, and a
// client of the lock library that holds bill:1003.
type site struct {
	*fakes.Stage
	url    string
	server *web.Server
	worker *locks.Client
	bills  *jobs.Job
	run    jobs.RunID
	hold   *locks.Hold // of the run
	shell  *locks.Hold
}

func newSite(t *testing.T) *site {
	t.Helper()
	rdb := redistest.Client(t)
	s := &site{Stage: fakes.NewStage(t, rdb)}
	client, err := queue.New(rdb, s.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	operator := admin.NewOperator(s.Ledger, client, worker.NewPusher(client, s.Ledger).Push, nil, func(err error) { t.Error(err) })
	server, err := web.New(web.Options{Reader: admin.NewReader(s.Ledger), Operator: operator, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.server = server
	s.bills = &jobs.Job{
		Name: "settle-bills", Handler: "bills.settle", Queue: "default", Lock: jobs.Lock{Exclusive: []string{"bill:{id}"}},
		History: jobs.History{Runs: 100, For: time.Hour},
	}
	if _, err := s.Ledger.Register(t.Context(), "config", []*jobs.Job{s.bills}); err != nil {
		t.Fatal(err)
	}
	card := &worker.Card{Host: "web-1", PID: 4711, State: "ready", Slots: 4, Queues: map[string]int{"default": 1}, StartedAt: time.Now()}
	s.worker = s.Open("web-1", card)
	due := s.Enqueue(s.bills, "first", `{"id":1001}`)
	s.run = due.Run
	_, s.hold = s.Begin(s.worker, due)
	_, request := s.Claim(s.worker, s.Enqueue(s.bills, "second", `{"id":1001}`))
	request.Drop()
	shell := s.Open("shell", nil)
	if s.shell, err = shell.Acquire(t.Context(), locks.Exclusive("bill:1003"), locks.Info([]byte(`{"command":["./settle.sh"]}`))); err != nil {
		t.Fatal(err)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// browser is a tab that shows a site. Its methods fail the test.
type browser struct {
	t    *testing.T
	tab  context.Context
	site *site
}

// open starts a browser. At the end of the test, no request may have left the site.
func open(t *testing.T, s *site) *browser {
	t.Helper()
	if _, err := program(); err != nil && os.Getenv("LOCKSTEP_TEST_ALL") != "1" {
		t.Skipf("%v: the pages are not tested in a browser", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitLimit)
	t.Cleanup(cancel)
	tab, stop, err := start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	watched, unwatch := context.WithCancel(tab)
	requests := chromedp.Events(watched, network.RequestWillBeSent)
	var watching sync.WaitGroup
	watching.Go(func() {
		for event, err := range requests {
			if err != nil {
				return
			}
			if target := event.Request.URL; target != s.url && !strings.HasPrefix(target, s.url+"/") {
				t.Errorf("a page asks for %s, outside of its host", target)
			}
		}
	})
	t.Cleanup(func() {
		unwatch()
		watching.Wait()
		stop()
	})
	b := &browser{t, tab, s}
	if _, err := chromedp.Call(tab, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	b.look(light)
	return b
}

func (b *browser) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.tab, steps...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b *browser) look(l look) {
	b.t.Helper()
	if err := l.show(b.tab); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) visit(path string) {
	b.t.Helper()
	b.do("visit "+path, chromedp.Navigate(b.site.url+path))
}

// read evaluates an expression in the page.
func read[T any](b *browser, expression string, options ...chromedp.EvaluateOption) T {
	b.t.Helper()
	value, err := chromedp.Run(b.tab, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		b.t.Fatalf("evaluate %.200s: %v", expression, err)
	}
	return value
}

// await waits until an expression is true in the page. It asks from outside, so that it works
// without JavaScript and under the policy of the pages, and continues over a change of pages.
func (b *browser) await(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.tab, waitLimit)
	defer cancel()
	for {
		found, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		if err == nil && found {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("%s: not within %s: %s shows %s", what, waitLimit, read[string](b, "location.href"), read[string](b, "document.body.innerText"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitPage waits until the page with this path is shown.
func (b *browser) awaitPage(path string) {
	b.t.Helper()
	b.await("page "+path, fmt.Sprintf(`location.pathname === %q && document.readyState === "complete"`, path))
}

// follow clicks the first link to a path within the page.
func (b *browser) follow(path string) {
	b.t.Helper()
	selector := fmt.Sprintf(`main a[href=%q]`, path)
	b.do("click "+path, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
	b.awaitPage(path)
}

func (b *browser) press(keys string) {
	b.t.Helper()
	b.do(fmt.Sprintf("press %q", keys), chromedp.KeyEvent(keys))
}

// runPath is the path of a run's page.
func runPath(id jobs.RunID) string { return "/runs/" + url.PathEscape(string(id)) }
