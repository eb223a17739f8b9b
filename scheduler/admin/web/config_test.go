package web

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
)

// configServer is a server of the worker "web-1.x" with the config that the test gives it.
func configServer(t *testing.T, config *admin.Config, reload func(context.Context) error) *Server {
	t.Helper()
	s, err := New(Options{
		Reader: readerOf(fakes.Fleet()), Worker: func() string { return "web-1.x" }, Logger: slog.New(slog.DiscardHandler),
		Config: func() *admin.Config { return config }, Reload: reload,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func postReload(s *Server, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/api/v1/config/reload", strings.NewReader(body))
	r.Host = "127.0.0.1:9620"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestConfigIsShown(t *testing.T) {
	t.Parallel()
	s := configServer(t, &admin.Config{Digest: "9f2c1e", Files: []string{"lockstep.yaml"}, Jobs: 4, LoadedAt: admin.Instant{Time: fakes.Noon}}, nil)
	w := get(s, "/api/v1/config")
	want := `{"worker":"web-1.x","digest":"9f2c1e","files":["lockstep.yaml"],"jobs":4,"warnings":0,"loaded_at":"2026-11-21T12:00:00.000Z",` +
		`"reloads":0,"refused_reloads":0,"refused_at":null,"problems":[],"needs_restart":[]}` + "\n"
	if w.Code != http.StatusOK || w.Body.String() != want {
		t.Errorf("got %d, %s\nwant %s", w.Code, w.Body, want)
	}
	if body := get(s, "/").Body.String(); strings.Contains(body, "banner") {
		t.Errorf("the page has a banner without a reason")
	}
	if w := get(newServer(t, fakes.Fleet()), "/api/v1/config"); w.Code != http.StatusNotFound {
		t.Errorf("a process without a worker answers %d: %s", w.Code, w.Body)
	}
}

// A page names the place of a job in the files of the worker that serves it. A job that only other
// workers have has none there.
func TestAJobIsShownWithItsFileAndLine(t *testing.T) {
	t.Parallel()
	config := &admin.Config{Places: map[string]string{"warm-cache": "conf.d/<shop>.yaml:14", "only-here": "conf.d/new.yaml:3"}}
	f := fakes.Fleet()
	for i := range f.Registered {
		f.Registered[i].Drifted = true
	}
	s, err := New(Options{Reader: readerOf(f), Worker: func() string { return "web-1.x" }, Logger: slog.New(slog.DiscardHandler), Config: func() *admin.Config { return config }})
	if err != nil {
		t.Fatal(err)
	}
	const place = "<code>conf.d/&lt;shop&gt;.yaml:14</code>"
	for path, want := range map[string]int{"/jobs/warm-cache": 1, "/jobs/nightly-backup": 0, "/config": 1} {
		body := browse(s, path).Body.String()
		if strings.Count(body, place) != want || strings.Contains(body, "new.yaml") {
			t.Errorf("%s: got %s, want %s %d times", path, body, place, want)
		}
	}
	if body := browse(s, "/jobs/nightly-backup").Body.String(); strings.Contains(body, "<dt>File</dt>") {
		t.Error("the page of a job that this worker does not have names a file")
	}
	want := `{"items":[{"job":"only-here","at":"conf.d/new.yaml:3"}],"next_cursor":"b25seS1oZXJl"}` + "\n"
	if got := get(s, "/api/v1/config/jobs?limit=1").Body.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := getList(t, s, "/api/v1/config/jobs?cursor=b25seS1oZXJl").names("at"); len(got) != 1 || got[0] != "conf.d/<shop>.yaml:14" {
		t.Errorf("the next page has %v", got)
	}
	if w := get(newServer(t, f), "/api/v1/config/jobs"); w.Code != http.StatusNotFound {
		t.Errorf("a process without a worker answers %d: %s", w.Code, w.Body)
	}
}

func TestRefusedConfigHasABanner(t *testing.T) {
	t.Parallel()
	config := &admin.Config{Digest: "9f2c1e", LoadedAt: admin.Instant{Time: fakes.Noon}, RefusedAt: admin.Instant{Time: fakes.Noon}}
	for range 12 {
		config.Problems = append(config.Problems, admin.ConfigProblem{At: "a.yaml:3:5", Code: "unknown-key", Message: `unknown key "<b>"`, Hint: "none"})
	}
	body := get(configServer(t, config, nil), "/").Body.String()
	for _, want := range []string{"The new config was refused", "a.yaml:3:5: unknown key &#34;&lt;b&gt;&#34;; none [unknown-key]", "and 2 more"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	body = get(configServer(t, &admin.Config{NeedsRestart: []string{"worker.concurrency"}}, nil), "/").Body.String()
	if !strings.Contains(body, "A restart is needed") || !strings.Contains(body, "<code>worker.concurrency</code>") {
		t.Errorf("the page does not tell that a restart is needed")
	}
}

func TestReloadIsAskedFor(t *testing.T) {
	t.Parallel()
	config := &admin.Config{Digest: "one"}
	asked := 0
	s := configServer(t, config, func(context.Context) error { asked++; config.Digest = "two"; return nil })
	for _, body := range []string{"", `{"worker":"web-1.x"}`} {
		if w := postReload(s, body); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"digest":"two"`) {
			t.Errorf("%q: got %d, %s", body, w.Code, w.Body)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
	for name, w := range map[string]*httptest.ResponseRecorder{
		"409 another worker": postReload(s, `{"worker":"web-2.y"}`),
		"400 no JSON":        postReload(s, `worker`),
		"400 unknown":        postReload(s, `{"wrker":"web-1.x"}`),
		"413 too long":       postReload(s, `{"worker":"`+strings.Repeat("x", reloadLimit)+`"}`),
		"403 another page":   postReload(s, "", "Sec-Fetch-Site", "cross-site"),
		"403 another origin": postReload(s, "", "Origin", "https://elsewhere.example"),
		"403 another name":   postReload(s, "", "Host", "elsewhere.example:9620"),
		"405 GET":            get(s, "/api/v1/config/reload"),
		"404 nothing to do":  postReload(newServer(t, fakes.Fleet()), ""),
		"500 failed":         postReload(configServer(t, config, func(context.Context) error { return errors.New("no") }), ""),
	} {
		if got := w.Result(); got.Status[:3] != name[:3] || got.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %s, %s: %s", name, got.Status, got.Header.Get("Content-Type"), w.Body)
		}
	}
	if asked != 2 {
		t.Errorf("a refused request was passed on")
	}
	config.RefusedAt = admin.Instant{Time: fakes.Noon}
	if w := postReload(s, ""); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("a refused config answers %d, want 422", w.Code)
	}
}

// A reload takes as long as it needs, whatever the deadlines of usual requests are.
func TestAReloadOutlivesTheDeadlinesOfRequests(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	server := httptest.NewUnstartedServer(configServer(t, &admin.Config{Digest: "one"}, func(ctx context.Context) error {
		select {
		case <-time.After(2 * limit):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}))
	server.Config.ReadTimeout, server.Config.WriteTimeout = limit, limit
	server.Start()
	defer server.Close()
	for _, body := range []string{"", `{"worker":"web-1.x"}`} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+reloadPath, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%q: got %s, %s, %v, want 200 after %s", body, response.Status, reply, err, 2*limit)
		}
	}
}
