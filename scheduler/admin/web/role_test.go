package web

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// byGroups is the sign-in by a proxy, with the roles as groups.
var byGroups = Auth{
	Mode: AuthProxy, Header: "X-Forwarded-User", Proxies: loopback, GroupsHeader: "X-Groups",
	Viewers: []string{"viewer"}, Operators: []string{"operator"}, Admins: []string{"admin"},
}

// newRoled is a console with a server that takes users by [byGroups], and a count of the reloads.
func newRoled(t *testing.T, readOnly bool) (c *console, reloads *int) {
	t.Helper()
	signIn, err := NewSignIn(byGroups, "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, reloads = newConsole(t, redistest.Client(t)), new(int)
	c.server, err = New(Options{
		Reader: c.reader, Operator: c.operator, SignIn: signIn, ReadOnly: readOnly, Hosts: []string{"lockstep.example"}, Pass: "the-pass",
		Config: func() *admin.Config { return new(admin.Config) }, Reload: func(context.Context) error { *reloads++; return nil },
		Metrics: NewMetrics("v", 1, 10), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, reloads
}

// sends sends a request as a user with a role; "" for a user without one. The user is named after
// the role.
func (c *console) sends(role Role, method, path, body string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "lockstep.example", "127.0.0.1:1234"
	r.Header.Set("X-Forwarded-User", "the-"+string(role))
	r.Header.Set("X-Groups", "staff, "+string(role))
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	return w
}

var parameter = regexp.MustCompile(`\{[^}]*\}`)

// pathOf returns a path that a pattern matches, of a thing that does not exist.
func pathOf(pattern string) string {
	if pattern == "/" {
		return "/nothing"
	}
	return parameter.ReplaceAllStringFunc(pattern, func(name string) string {
		if name == "{$}" {
			return ""
		}
		return "nothing%23x"
	})
}

// A route that is registered later is tested too.
func TestEachRoleMayDoWhatEachRouteAllows(t *testing.T) {
	t.Parallel()
	c, reloads := newRoled(t, false)
	senders := map[string]func(*http.Request){
		"directly":         nil,
		"another origin":   func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"a name of others": func(r *http.Request) { r.Host = "evil.example" },
	}
	acts := 0
	for _, route := range c.server.table {
		path := pathOf(route.pattern)
		changes := route.method == http.MethodPost
		// the page of an act asks for a GET and acts on a POST
		form := changes && !strings.HasPrefix(path, "/api/")
		if changes {
			acts++
			if route.least == "" {
				t.Errorf("%s changes something, and needs no role", route.pattern)
			}
		}
		for _, role := range []Role{"", RoleViewer, RoleOperator, RoleAdmin} {
			for from, change := range senders {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					status, detail := 0, "" // 0: it is allowed, and 404 or 400 for other reasons
					switch posts := method == http.MethodPost; {
					case route.least == "" && !posts:
					case route.least != "" && from == "a name of others":
						status, detail = http.StatusForbidden, "admin.hosts"
					case route.least != "" && role == "":
						status, detail = http.StatusForbidden, "no group of yours is in admin.auth.viewers, operators or admins"
					case posts && route.pattern == "/":
						status = http.StatusNotFound
					case posts != changes && !form:
						status = http.StatusMethodNotAllowed
					case posts && from == "another origin":
						status, detail = http.StatusForbidden, "another origin"
					case !role.May(route.least):
						status, detail = http.StatusForbidden, "this needs the role "+string(route.least)+", and yours is "+string(role)
					}
					w := c.sends(role, method, path, "{}", func(r *http.Request) {
						if change != nil {
							change(r)
						}
						ended, cancel := context.WithCancel(r.Context())
						cancel() // ends a route that sends events
						if !changes {
							*r = *r.WithContext(ended)
						}
					})
					refused := slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed}, w.Code)
					if status != 0 && w.Code != status || status == 0 && refused || !strings.Contains(w.Body.String(), detail) {
						t.Errorf("%s %s by role %q from %s: got %d, %s, want %d, %q", method, path, role, from, w.Code, w.Body, status, detail)
					}
				}
			}
		}
	}
	if len(c.server.table) < 25 || acts < 10 {
		t.Errorf("got %d routes, %d that change something", len(c.server.table), acts)
	}
	if *reloads != 1 {
		t.Errorf("the config was read %d times, want once: only by the admin, from the same origin", *reloads)
	}
	recorded, err := c.reader.Audit(t.Context(), admin.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, act := range recorded {
		if !strings.HasPrefix(act.Who, "the-admin ") && !strings.HasPrefix(act.Who, "the-operator ") {
			t.Errorf("%s did %s", act.Who, act.What)
		}
	}
}

// quitter cancels a request when its reply begins: a reply of events has no end.
type quitter struct {
	*httptest.ResponseRecorder
	cancel context.CancelFunc
}

func (q quitter) Write(p []byte) (int, error) {
	defer q.cancel()
	return q.ResponseRecorder.Write(p)
}

func (q quitter) WriteString(p string) (int, error) { return q.Write([]byte(p)) }

// A route that is registered later is tested too.
func TestSecretsOfJobsAreInNoReply(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	const hush = "hush-8d2f"
	args := json.RawMessage(`{"password":"` + hush + `","user":"ann"}`)
	f.Registered = append(f.Registered,
		ledger.JobRecord{Job: &jobs.Job{Name: "sync", Queue: "default", Command: []string{"sync"}, Env: map[string]string{"TOKEN": hush}, Args: args, SecretArgs: []string{"password"}}},
		ledger.JobRecord{Job: &jobs.Job{Name: "call", Queue: "default", HTTP: &jobs.HTTP{Method: "GET", URL: "https://x/?key=" + hush, Headers: map[string]string{"Authorization": hush}}}})
	f.Open = append(f.Open, &ledger.Record{ID: "sync#open", Job: "sync", State: ledger.StateDue, Queue: "default", Created: fakes.Noon, Args: args})
	f.Ended["sync"] = []*ledger.Record{{ID: "sync#ended", Job: "sync", State: ledger.StateFailed, Created: fakes.Noon, Finished: fakes.Noon, Args: args}}
	s := newServer(t, f)
	hidden := 0
	for _, route := range s.table {
		if route.method == http.MethodPost {
			continue
		}
		for _, name := range []string{"sync", "call", "sync%23open", "sync%23ended"} {
			path := parameter.ReplaceAllString(strings.TrimSuffix(route.pattern, "{$}"), name)
			ctx, cancel := context.WithCancel(t.Context())
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
			r.Host = "127.0.0.1:9620"
			w := quitter{httptest.NewRecorder(), cancel}
			s.ServeHTTP(w, r)
			cancel()
			if strings.Contains(w.Body.String(), hush) {
				t.Errorf("%s has a secret: %s", path, w.Body)
			}
			if strings.Contains(w.Body.String(), jobs.Hidden) {
				hidden++
			}
		}
	}
	if hidden < 10 {
		t.Errorf("got %d replies with a hidden arg, want those of jobs and runs", hidden)
	}
}

func TestSelectedRunsNeedTheRoleOperator(t *testing.T) {
	t.Parallel()
	c, _ := newRoled(t, false)
	c.requests(2)
	match, err := c.reader.SelectToCancel(t.Context(), []jobs.RunID{"nightly#0"})
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"run": {"nightly#0"}, "reason": {"x"}, "seen": {"1 " + match.Mark()}}.Encode()
	for _, role := range roles {
		w := c.sends(role, http.MethodPost, "/runs/cancel", form, func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		})
		if want := role.May(RoleOperator); (w.Code == http.StatusForbidden) == want {
			t.Errorf("%s: got %d, %s", role, w.Code, w.Body)
		}
		if run, err := c.Ledger.FindRecord(t.Context(), "nightly#0"); err != nil || run.State.Final() != role.May(RoleOperator) {
			t.Errorf("after the request of a %s, the run is %+v, %v", role, run, err)
		}
	}
}

func TestForceNeedsTheRoleAdmin(t *testing.T) {
	t.Parallel()
	c, _ := newRoled(t, false)
	const path = "/api/v1/locks/free/release"
	checkProblem(t, c.sends(RoleOperator, http.MethodPost, path, `{"token": "5", "reason": "x", "force": true}`, nil), http.StatusForbidden, "needs the role admin")
	for _, role := range []Role{RoleOperator, RoleAdmin} {
		checkProblem(t, c.sends(role, http.MethodPost, path, `{"token": "5", "reason": "x"}`, nil), http.StatusConflict, "release lock")
	}
}

func TestReadOnlyMakesEveryUserAViewer(t *testing.T) {
	t.Parallel()
	c, reloads := newRoled(t, true)
	for _, role := range roles {
		if got := c.sends(role, http.MethodGet, "/api/v1/whoami", "", nil).Body.String(); !strings.Contains(got, `"role":"viewer"`) {
			t.Errorf("%s: got %s", role, got)
		}
		for _, path := range []string{"/api/v1/jobs/nightly/pause", reloadPath} {
			checkProblem(t, c.sends(role, http.MethodPost, path, "", nil), http.StatusForbidden, "admin.read_only makes every user a viewer")
		}
	}
	if w := c.sends("", http.MethodGet, "/api/v1/whoami", "", nil); w.Code != http.StatusForbidden {
		t.Errorf("a user without a role: got %d, %s", w.Code, w.Body)
	}
	// the command line, which could change the files as well
	if w := c.sends("", http.MethodPost, reloadPath, "", bearing("Lockstep", "the-pass")); w.Code != http.StatusOK || *reloads != 1 {
		t.Errorf("the ticket: got %d, %s", w.Code, w.Body)
	}
	if record, err := c.Ledger.Job(t.Context(), "nightly"); err != nil || record.Paused != "" {
		t.Errorf("paused %q, %v", record.Paused, err)
	}
}

// whoami returns what the server knows about the sender of a request, or the status of a refusal.
func (g *guarded) whoami(t *testing.T, change func(*http.Request)) (user string, role Role, status int) {
	t.Helper()
	w := g.asks(http.MethodGet, "/api/v1/whoami", change)
	if w.Code != http.StatusOK {
		return "", "", w.Code
	}
	var who struct {
		User string
		Role Role
	}
	if err := json.Unmarshal(w.Body.Bytes(), &who); err != nil {
		t.Fatal(err)
	}
	return who.User, who.Role, w.Code
}

func TestUsersFileGivesRoles(t *testing.T) {
	t.Parallel()
	line := func(user, role string) string { return strings.TrimSuffix(hashed(t, user, "x"), "\n") + role + "\n" }
	for text, want := range map[string]struct {
		ann, bob Role
		warning  string
	}{
		line("ann", "") + line("bob", ""):                   {RoleAdmin, RoleAdmin, "no line has a role, so every user is an admin"},
		line("ann", ":operator") + line("bob", ""):          {RoleOperator, RoleViewer, `users without a role are viewers: "bob"`},
		line("ann", ":admin") + line("bob", ":viewer"):      {RoleAdmin, RoleViewer, ""},
		line("ann", ":viewer\r") + line("bob", ":operator"): {RoleViewer, RoleOperator, ""},
	} {
		path := secretFile(t, text)
		g := newGuarded(t, Auth{Mode: AuthBasic, UsersFile: path}, "127.0.0.1:0")
		for range 2 { // also with credentials that are remembered
			for user, role := range map[string]Role{"ann": want.ann, "bob": want.bob} {
				if _, got, status := g.whoami(t, as(user, "x")); got != role {
					t.Errorf("%s: %s: got %q, %d, want %s", text, user, got, status, role)
				}
			}
		}
		_, warning := g.o.SignIn.Warnings()
		if !strings.Contains(warning, want.warning) || (want.warning == "") != (warning == "") {
			t.Errorf("%s: got the warning %q, want %q", text, warning, want.warning)
		}
		rewrite(t, path, line("ann", ":viewer")+line("bob", ":viewer"))
		if _, got, _ := g.whoami(t, as("ann", "x")); got != RoleViewer {
			t.Errorf("after a change of the file ann is %s", got)
		}
	}
}

func TestTokensHaveTheRoleOfTheirFile(t *testing.T) {
	t.Parallel()
	viewers := secretFile(t, "v1\n")
	g := newGuarded(t, Auth{Mode: AuthToken, User: "ci", TokenFile: secretFile(t, "a1"), OperatorTokenFile: secretFile(t, "o1"), ViewerTokenFile: viewers}, "127.0.0.1:0")
	check := func(token, user string, role Role) {
		t.Helper()
		if gotUser, got, status := g.whoami(t, bearing("Bearer", token)); gotUser != user || got != role {
			t.Errorf("%s: got %q, %q, %d, want %s, %s", token, gotUser, got, status, user, role)
		}
	}
	for range 2 {
		check("a1", "ci", RoleAdmin)
		check("o1", "operator", RoleOperator)
		check("v1", "viewer", RoleViewer)
		check("x1", "", "")
	}
	rewrite(t, viewers, "a1") // a mistake: the lower role counts
	check("a1", "viewer", RoleViewer)
	check("v1", "", "")
	only := newGuarded(t, Auth{Mode: AuthToken, ViewerTokenFile: secretFile(t, "v1")}, "127.0.0.1:0")
	if _, got, _ := only.whoami(t, bearing("Bearer", "v1")); got != RoleViewer {
		t.Errorf("got %q", got)
	}
}

func TestGroupsOfAProxyGiveRoles(t *testing.T) {
	t.Parallel()
	auth := Auth{
		Mode: AuthProxy, Header: "X-Forwarded-User", Proxies: loopback, GroupsHeader: "X-Groups",
		Operators: []string{"dev", "on call"}, Admins: []string{"sre"},
	}
	some := newGuarded(t, auth, "127.0.0.1:0")
	auth.Viewers = []string{"*"}
	all := newGuarded(t, auth, "127.0.0.1:0")
	for _, test := range []struct {
		groups                []string
		some, all             Role
		someStatus, allStatus int
	}{
		{[]string{"sre"}, RoleAdmin, RoleAdmin, 200, 200},
		{[]string{"staff, dev"}, RoleOperator, RoleOperator, 200, 200},
		{[]string{"dev|sre|staff"}, RoleAdmin, RoleAdmin, 200, 200},
		{[]string{" on call "}, RoleOperator, RoleOperator, 200, 200},
		{[]string{"SRE"}, "", RoleViewer, 403, 200},
		{[]string{"sre2,*"}, "", RoleViewer, 403, 200},
		{[]string{""}, "", RoleViewer, 403, 200},
		{nil, "", RoleViewer, 403, 200},
		{[]string{"dev", "sre"}, "", "", 401, 401},
	} {
		sent := func(r *http.Request) {
			named("127.0.0.1:1", "X-Forwarded-User", "ann")(r)
			if test.groups != nil {
				r.Header["X-Groups"] = test.groups
			}
		}
		_, role, status := some.whoami(t, sent)
		_, roleOfAll, statusOfAll := all.whoami(t, sent)
		if role != test.some || status != test.someStatus || roleOfAll != test.all || statusOfAll != test.allStatus {
			t.Errorf("%q: got %q, %d and with viewers %q, %d, want %+v", test.groups, role, status, roleOfAll, statusOfAll, test)
		}
	}
}
