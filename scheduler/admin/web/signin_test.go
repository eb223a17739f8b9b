package web

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"golang.org/x/crypto/bcrypt"

	"lockstep/jobs"
	"lockstep/locks/redistest"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
)

// secretFile writes a file and returns its path.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	rewrite(t, path, text)
	return path
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// hashed is a line of a users file.
func hashed(t *testing.T, user, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return user + ":" + string(hash) + "\n"
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// guarded is a server with a sign-in, and a reload that only counts.
type guarded struct {
	*Server
	reloads int
}

func newGuarded(t *testing.T, auth Auth, address string) *guarded {
	t.Helper()
	signIn, err := NewSignIn(auth, address, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g := new(guarded)
	g.Server, err = New(Options{
		Reader: readerOf(fakes.Fleet()), SignIn: signIn, Hosts: []string{"lockstep.example"}, Pass: "the-pass", Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics("v", 1, 10),
		Config: func() *admin.Config { return new(admin.Config) }, Reload: func(context.Context) error { g.reloads++; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// asks sends a request, after a change to it.
func (g *guarded) asks(method, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host, r.RemoteAddr = "lockstep.example", "192.0.2.7:1234"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

func as(user, password string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth(user, password) }
}

func bearing(scheme, token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", scheme+" "+token) }
}

func named(from, header string, names ...string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr, r.Header[http.CanonicalHeaderKey(header)] = from, names }
}

// For each mode: the requests that have access and their users, and those without access.
func TestOnlySignedInUsersHaveAccess(t *testing.T) {
	t.Parallel()
	type try struct {
		what   string
		change func(*http.Request)
		user   string // "": without access
	}
	basic := []try{
		{"nothing", nil, ""},
		{"the right one", as("ann", "pässword: 1"), "ann"},
		{"another password", as("ann", "pässword: 2"), ""},
		{"a part of the password", as("ann", "pässword: "), ""},
		{"no password", as("ann", ""), ""},
		{"another user", as("bob", "pässword: 1"), ""},
		{"no user", as("", "pässword: 1"), ""},
		{"a token", bearing("Bearer", "pässword: 1"), ""},
		{"what is no base64", bearing("Basic", "%%%"), ""},
		{"the header of a proxy", named("127.0.0.1:1", "X-Forwarded-User", "ann"), ""},
	}
	for name, test := range map[string]struct {
		auth      Auth
		challenge string
		tries     []try
	}{
		"basic with a password file": {Auth{Mode: AuthBasic, User: "ann", PasswordFile: secretFile(t, "pässword: 1\n")}, `Basic realm="lockstep", charset="UTF-8"`, basic},
		"basic with a users file": {Auth{Mode: AuthBasic, User: "ann", UsersFile: secretFile(t, "# users\n\n"+hashed(t, "carl", "other")+strings.TrimSuffix(hashed(t, "ann", "pässword: 1"), "\n")+"\r\n")},
			`Basic realm="lockstep", charset="UTF-8"`, append(basic, try{"the first user", as("carl", "other"), "carl"}, try{"twice", as("carl", "other"), "carl"}, try{"what was right for another", as("ann", "other"), ""})},
		"token": {Auth{Mode: AuthToken, User: "ci", TokenFile: secretFile(t, "0123456789abcdef\n")}, `Bearer realm="lockstep"`, []try{
			{"nothing", nil, ""},
			{"the right one", bearing("Bearer", "0123456789abcdef"), "ci"},
			{"the scheme in small letters", bearing("bearer", "0123456789abcdef"), "ci"},
			{"another one", bearing("Bearer", "0123456789abcdeF"), ""},
			{"a part of it", bearing("Bearer", "0123456789"), ""},
			{"an empty one", bearing("Bearer", ""), ""},
			{"as a password", as("ci", "0123456789abcdef"), ""},
			{"the ticket", bearing("Lockstep", "the-pass"), ""},
		}},
		"proxy": {Auth{Mode: AuthProxy, Header: "X-Forwarded-User", Proxies: append(loopback, netip.MustParsePrefix("10.1.0.0/16"))}, `Proxy realm="lockstep"`, []try{
			{"nothing", nil, ""},
			{"from the proxy", named("127.0.0.1:4711", "X-Forwarded-User", "ann@example.org"), "ann@example.org"},
			{"from a network of proxies", named("10.1.2.3:4711", "x-forwarded-user", "ann"), "ann"},
			{"over IPv6", named("[::1]:4711", "X-Forwarded-User", "ann"), "ann"},
			{"IPv4 in IPv6", named("[::ffff:10.1.2.3]:4711", "X-Forwarded-User", "ann"), "ann"},
			{"from elsewhere", named("192.0.2.7:4711", "X-Forwarded-User", "ann"), ""},
			{"from its neighbour", named("10.2.0.1:4711", "X-Forwarded-User", "ann"), ""},
			{"without a name", named("127.0.0.1:4711", "X-Other", "ann"), ""},
			{"with an empty name", named("127.0.0.1:4711", "X-Forwarded-User", ""), ""},
			{"with two names", named("127.0.0.1:4711", "X-Forwarded-User", "root", "ann"), ""},
			{"with a name of blanks", named("127.0.0.1:4711", "X-Forwarded-User", " "), ""},
			{"with a name that is too long", named("127.0.0.1:4711", "X-Forwarded-User", strings.Repeat("a", jobs.MaxUserName+1)), ""},
			{"with a line break in its name", named("127.0.0.1:4711", "X-Forwarded-User", "ann\x1b[2J"), ""},
			{"from nowhere", named("@", "X-Forwarded-User", "ann"), ""},
		}},
	} {
		g := newGuarded(t, test.auth, "0.0.0.0:9620")
		for _, try := range test.tries {
			w := g.asks(http.MethodGet, "/api/v1/whoami", try.change)
			if try.user != "" {
				if want := fmt.Sprintf(`{"user":%q,"mode":%q,"role":"admin"}`+"\n", try.user, test.auth.Mode); w.Code != http.StatusOK || w.Body.String() != want {
					t.Errorf("%s, %s: got %d, %s, want %s", name, try.what, w.Code, w.Body, want)
				}
				continue
			}
			if h := w.Header(); w.Code != http.StatusUnauthorized || h.Get("WWW-Authenticate") != test.challenge || h.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s, %s: got %d, %q, %q, want 401 and the challenge %s", name, try.what, w.Code, h.Get("WWW-Authenticate"), h.Get("Content-Type"), test.challenge)
			}
			var problem struct{ Title, Detail string }
			if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Title != "Unauthorized" || !strings.HasPrefix(problem.Detail, "sign in") {
				t.Errorf("%s, %s: got the problem %s", name, try.what, w.Body)
			}
		}
	}
}

// closedPaths are examples of every kind of path that needs a sign-in.
var closedPaths = []string{"/", "/static/page.css", "/api/v1/jobs", "/api/v1/runs/x/cancel", "/api/v1/config", "/api/v1/config/reload", "/nothing",
	"/livez/", "/metrics/../api/v1/jobs", "//livez"}

func TestProbesAndMetricsNeedNoSignIn(t *testing.T) {
	t.Parallel()
	token := secretFile(t, "0123456789abcdef")
	for name, g := range map[string]*guarded{
		"token":                                newGuarded(t, Auth{Mode: AuthToken, TokenFile: token}, "127.0.0.1:0"),
		"none at an address that others reach": newGuarded(t, Auth{Mode: AuthNone}, "0.0.0.0:9620"),
	} {
		for _, path := range []string{"/livez", "/readyz", "/metrics"} {
			if w := g.asks(http.MethodGet, path, nil); w.Code != http.StatusOK {
				t.Errorf("%s: %s answers %d: %s", name, path, w.Code, w.Body)
			}
		}
		want := map[string]int{"token": http.StatusUnauthorized}[name]
		if want == 0 {
			want = http.StatusForbidden
		}
		for _, path := range closedPaths {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions} {
				if w := g.asks(method, path, nil); w.Code != want {
					t.Errorf("%s: %s %s answers %d, want %d", name, method, path, w.Code, want)
				}
			}
		}
	}
}

func TestWithoutAuthOnlyLoopbackIsOpen(t *testing.T) {
	t.Parallel()
	for address, closed := range map[string]bool{
		"127.0.0.1:9620": false, "localhost:9620": false, "[::1]:0": false, "127.9.9.9:1": false, "[::ffff:127.0.0.1]:1": false,
		"0.0.0.0:9620": true, ":9620": true, "[::]:9620": true, "10.0.0.7:9620": true, "[2001:db8::1]:9620": true,
	} {
		g := newGuarded(t, Auth{}, address)
		w := g.asks(http.MethodGet, "/api/v1/whoami", nil)
		if got := w.Code != http.StatusOK; got != closed || g.o.SignIn.Closed() != closed {
			t.Errorf("%s: answers %d, closed %t, want %t", address, w.Code, g.o.SignIn.Closed(), closed)
		}
		if closed && !strings.Contains(w.Body.String(), "set admin.auth.mode") {
			t.Errorf("%s: the answer does not tell the remedy: %s", address, w.Body)
		}
		if !closed && w.Body.String() != `{"user":null,"mode":"none","role":"admin"}`+"\n" {
			t.Errorf("%s: got %s", address, w.Body)
		}
	}
}

// The command line reads the ticket from Redis, and may use it for only one request.
func TestTicketOpensTheReloadAlone(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]*guarded{
		"token":  newGuarded(t, Auth{Mode: AuthToken, TokenFile: secretFile(t, "0123456789abcdef")}, "127.0.0.1:0"),
		"closed": newGuarded(t, Auth{}, "0.0.0.0:0"),
	} {
		at := func(r *http.Request) {
			r.Host = "10.0.0.7:9620"
			r.Header.Set("Authorization", "Lockstep the-pass")
		}
		if w := g.asks(http.MethodPost, "/api/v1/config/reload", at); w.Code != http.StatusOK || g.reloads != 1 {
			t.Errorf("%s: got %d, %s", name, w.Code, w.Body)
		}
		for _, path := range closedPaths {
			if w := g.asks(http.MethodGet, path, at); path != reloadPath && w.Code < 400 {
				t.Errorf("%s: the ticket opens %s", name, path)
			}
		}
		if w := g.asks(http.MethodPost, "/api/v1/config/reload", bearing("Lockstep", "")); w.Code < 400 {
			t.Errorf("%s: an empty ticket opens the reload", name)
		}
	}
	g := newGuarded(t, Auth{}, "0.0.0.0:0")
	g.o.Pass = ""
	if w := g.asks(http.MethodPost, "/api/v1/config/reload", bearing("Lockstep", "")); w.Code != http.StatusForbidden {
		t.Errorf("no ticket is opened by none: got %d", w.Code)
	}
}

func TestChangedPasswordCountsAtOnce(t *testing.T) {
	t.Parallel()
	one, many, token := secretFile(t, "first"), secretFile(t, hashed(t, "ann", "first")), secretFile(t, "first")
	for name, test := range map[string]struct {
		auth  Auth
		path  string
		with  func(secret string) func(*http.Request)
		write func(secret string) string
	}{
		"password": {Auth{Mode: AuthBasic, User: "ann", PasswordFile: one}, one, func(s string) func(*http.Request) { return as("ann", s) }, func(s string) string { return s }},
		"users":    {Auth{Mode: AuthBasic, UsersFile: many}, many, func(s string) func(*http.Request) { return as("ann", s) }, func(s string) string { return hashed(t, "ann", s) }},
		"token":    {Auth{Mode: AuthToken, TokenFile: token}, token, func(s string) func(*http.Request) { return bearing("Bearer", s) }, func(s string) string { return s }},
	} {
		g := newGuarded(t, test.auth, "127.0.0.1:0")
		status := func(secret string) int { return g.asks(http.MethodGet, "/api/v1/whoami", test.with(secret)).Code }
		if got := status("first"); got != http.StatusOK {
			t.Fatalf("%s: got %d", name, got)
		}
		rewrite(t, test.path, test.write("other"))
		if before, now := status("first"), status("other"); before != http.StatusUnauthorized || now != http.StatusOK {
			t.Errorf("%s: the old secret answers %d and the new one %d", name, before, now)
		}
		if err := os.Truncate(test.path, 0); err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"other", "first", ""} {
			w := g.asks(http.MethodGet, "/api/v1/whoami", test.with(secret))
			if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), test.path) {
				t.Errorf("%s: with an empty file %q answers %d, %s", name, secret, w.Code, w.Body)
			}
		}
		if got := g.asks(http.MethodGet, "/readyz", nil).Code; got != http.StatusOK {
			t.Errorf("%s: /readyz answers %d", name, got)
		}
		rewrite(t, test.path, test.write("third"))
		if got := status("third"); got != http.StatusOK {
			t.Errorf("%s: the mended file answers %d", name, got)
		}
	}
}

func TestFilesThatCannotBeUsedAreErrorsAtTheStart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	line := hashed(t, "ann", "x")
	const fine = "$2y$05$"
	for want, auth := range map[string]Auth{
		`admin.auth.mode "ldap": it is none, basic, token or proxy`:  {Mode: "ldap"},
		"set admin.auth.password_file or admin.auth.users_file":      {Mode: AuthBasic},
		"only one of them can be meant":                              {Mode: AuthBasic, PasswordFile: "a", UsersFile: "b"},
		"set admin.auth.token_file":                                  {Mode: AuthToken},
		"set admin.auth.header and admin.auth.proxies":               {Mode: AuthProxy, Header: "X-User"},
		"admin.auth.password_file " + folder + "/none: no such file": {Mode: AuthBasic, PasswordFile: folder + "/none"},
		"admin.auth.token_file " + folder + ": it is not a file":     {Mode: AuthToken, TokenFile: folder},
		"admin.auth.users_file " + pipe + ": it is not a file":       {Mode: AuthBasic, UsersFile: pipe},
		"it is empty":                {Mode: AuthBasic, PasswordFile: secretFile(t, "\r\n\n")},
		"it is larger than 1024 KiB": {Mode: AuthToken, TokenFile: secretFile(t, strings.Repeat("x", secretMost+1))},
		"a token has no blanks":      {Mode: AuthToken, TokenFile: secretFile(t, "two words")},
		"it names no user":           {Mode: AuthBasic, UsersFile: secretFile(t, "# nobody\n")},
		"line 2 is not name:hash":    {Mode: AuthBasic, UsersFile: secretFile(t, line+"SECRET\n")},
		`line 2: user "bob" has no hash of bcrypt; write it by htpasswd -B`:                 {Mode: AuthBasic, UsersFile: secretFile(t, line+"bob:{SHA}SECRET=\n")},
		`line 1: user "eve" has no hash of bcrypt`:                                          {Mode: AuthBasic, UsersFile: secretFile(t, "eve:"+fine+"SECRET\n")},
		`line 2: the third field of user "bob" is no role: it is viewer, operator or admin`: {Mode: AuthBasic, UsersFile: secretFile(t, line+strings.TrimSuffix(hashed(t, "bob", "x"), "\n")+":SECRET\n")},
		`line 1: the third field of user "bob" is no role`:                                  {Mode: AuthBasic, UsersFile: secretFile(t, strings.TrimSuffix(hashed(t, "bob", "x"), "\n")+":\n")},
		"admin.auth.viewer_token_file and admin.auth.token_file have the same token":        {Mode: AuthToken, TokenFile: secretFile(t, "same"), ViewerTokenFile: secretFile(t, "same\n")},
		"admin.auth.operator_token_file " + folder + ": it is not a file":                   {Mode: AuthToken, OperatorTokenFile: folder},
		"admin.auth.groups_header and the groups":                                           {Mode: AuthProxy, Header: "X-User", Proxies: loopback, Viewers: []string{"*"}},
		"in admin.auth.viewers, operators and admins: set both or none":                     {Mode: AuthProxy, Header: "X-User", Proxies: loopback, GroupsHeader: "X-Groups"},
		`line 3: user "ann" is there already`:                                               {Mode: AuthBasic, UsersFile: secretFile(t, line+"\n"+line)},
		`the hash of user "dan" has a cost of 31`:                                           {Mode: AuthBasic, UsersFile: secretFile(t, "dan:"+strings.Replace(strings.TrimPrefix(line, "ann:"), "$04$", "$31$", 1))},
		"line 1: the name is longer than 200 bytes, or has blanks around it or":             {Mode: AuthBasic, UsersFile: secretFile(t, " "+line)},
	} {
		_, err := NewSignIn(auth, "127.0.0.1:0", slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// The audit names the signed-in user.
func TestAuditNamesTheSignedInUser(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		signIn, err := NewSignIn(Auth{Mode: AuthProxy, Header: "Remote-User", Proxies: loopback}, "127.0.0.1:0", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if c.server, err = New(Options{Reader: c.reader, Operator: c.operator, SignIn: signIn, Hosts: []string{"lockstep.example"}, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/api/v1/jobs/nightly/pause", strings.NewReader(`{"reason": "the partner is down"}`))
		r.Host, r.RemoteAddr = "lockstep.example", "127.0.0.1:1234"
		r.Header.Set("Remote-User", "ann")
		w := httptest.NewRecorder()
		c.server.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "by ann (http 127.0.0.1): the partner is down") {
			t.Fatalf("got %d, %s", w.Code, w.Body)
		}
		acts, err := c.reader.Audit(t.Context(), admin.Filter{Limit: 1})
		if err != nil || len(acts) != 1 || acts[0].Who != "ann (http 127.0.0.1)" {
			t.Errorf("got %+v, %v", acts, err)
		}
	})
}
