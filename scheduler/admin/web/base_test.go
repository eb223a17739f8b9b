package web

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"lockstep/scheduler/admin/fakes"
)

const underPath = "/ops/lockstep"

func newServerUnder(t *testing.T, basePath string) *Server {
	t.Helper()
	s, err := New(Options{Reader: readerOf(fakes.Fleet()), BasePath: basePath, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A reverse proxy may keep the base path in a request, or remove it.
func TestPathsAreServedWithAndWithoutTheBasePath(t *testing.T) {
	t.Parallel()
	s := newServerUnder(t, underPath)
	for _, path := range []string{"/", "/livez", "/readyz", "/static/page.css", "/api/v1/runs?limit=2", "/api/v1/whoami",
		"/api/v1/runs/settle-bills%2301K9B7ZK3M5W7QF", "/api/v1/runs/nightly-backup@2026-11-20T01:00:00Z/output"} {
		without, with := get(s, path), get(s, underPath+path)
		if without.Code != http.StatusOK || with.Code != http.StatusOK || without.Body.String() != with.Body.String() {
			t.Errorf("%s: got %d without the base path and %d with it: %s", path, without.Code, with.Code, with.Body)
		}
	}
	if w := get(s, underPath); w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("the base path itself: got %d, want the page", w.Code)
	}
	for _, path := range []string{"/ops", underPath + "x", underPath + "x/livez", underPath + "//api/v1/runs", underPath + "/static/../api/v1/runs",
		"//api/v1/runs", "/ops%2Flockstep/api/v1/runs/a%2Fb"} {
		if w := get(s, path); w.Code != http.StatusNotFound || w.Header().Get("Location") != "" {
			t.Errorf("%s: got %d, Location %q, want 404", path, w.Code, w.Header().Get("Location"))
		}
	}
	if got := get(s, underPath+"/api/v1/jobs/nobody").Body.String(); !strings.Contains(got, "job nobody") {
		t.Errorf("got %s, want the job's name", got)
	}
}

func TestLinksBeginWithTheBasePath(t *testing.T) {
	t.Parallel()
	for _, basePath := range []string{"", "/", underPath} {
		page := getPage(t, newServerUnder(t, basePath), http.StatusOK)
		want := strings.TrimSuffix(basePath, "/") + "/"
		links := 0
		page.each(func(e *element) {
			for _, name := range []string{"href", "src", "action"} {
				if ref, has := e.attr[name]; has && !strings.HasPrefix(ref, "#") {
					links++
					if !strings.HasPrefix(ref, want) {
						t.Errorf("base path %q: <%s %s=%q>", basePath, e.name, name, ref)
					}
				}
			}
		})
		if links < 10 {
			t.Errorf("base path %q: got %d links", basePath, links)
		}
	}
	document := get(newServerUnder(t, underPath), "/api/v1/openapi.json").Body.String()
	if want := `"servers":[{"url":"` + underPath + `"}]`; !strings.Contains(document, want) {
		t.Errorf("the document of the API lacks %s", want)
	}
}

func TestBasePathNeedsTheSameSignIn(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, Auth{Mode: AuthToken, TokenFile: secretFile(t, "0123456789abcdef")}, "127.0.0.1:0")
	g.o.BasePath = underPath
	for _, path := range closedPaths {
		if w := g.asks(http.MethodGet, underPath+path, nil); w.Code != http.StatusUnauthorized {
			t.Errorf("%s: got %d, want 401", path, w.Code)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if w := g.asks(http.MethodGet, underPath+path, nil); w.Code != http.StatusOK {
			t.Errorf("%s: got %d", path, w.Code)
		}
	}
	if w := g.asks(http.MethodPost, underPath+reloadPath, bearing("Lockstep", "the-pass")); w.Code != http.StatusOK || g.reloads != 1 {
		t.Errorf("the ticket: got %d, %d reloads", w.Code, g.reloads)
	}
}
