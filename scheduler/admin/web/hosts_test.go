package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// askedUnder requests a path under a host name, after a change to the request.
func askedUnder(h http.Handler, host, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host, r.RemoteAddr = host, "127.0.0.1:1234"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A name that an attacker makes point to 127.0.0.1 reaches this server from a browser of this
// machine.
func TestNamesOfOthersReadNothing(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, Auth{}, "127.0.0.1:9620")
	for _, path := range []string{"/", "/static/page.css", "/api/v1/jobs", "/api/v1/runs", "/api/v1/audit", "/nothing", "/livez/"} {
		for _, host := range []string{"evil.example", "evil.example:9620", "127.0.0.1.evil.example", "localhost.evil.example:9620", "localhostx"} {
			w := askedUnder(g, host, path, nil)
			if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "admin.hosts") {
				t.Errorf("%s under %s: got %d, %s, want 403 that names admin.hosts", path, host, w.Code, w.Body)
			}
		}
		for _, host := range []string{"127.0.0.1:9620", "127.0.0.1", "[::1]:9620", "[::1]", "localhost:9620", "LOCALHOST", "localhost.", "10.1.2.3:80"} {
			if w := askedUnder(g, host, path, nil); w.Code == http.StatusForbidden {
				t.Errorf("%s under %s: got %d, %s", path, host, w.Code, w.Body)
			}
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if w := askedUnder(g, "worker-1.fleet.internal:9620", path, nil); w.Code != http.StatusOK {
			t.Errorf("%s: got %d, want probes answered under any name", path, w.Code)
		}
	}
}

func TestModeNoneRefusesWhatAProxyForwards(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, Auth{}, "127.0.0.1:9620")
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "x-forwarded-proto", "X-Forwarded-Anything", "X-Real-Ip"} {
		with := func(r *http.Request) { r.Header.Set(header, "198.51.100.7") }
		w := askedUnder(g, "127.0.0.1:9620", "/api/v1/jobs", with)
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "admin.auth.mode to proxy") {
			t.Errorf("%s: got %d, %s, want 403 that names the remedy", header, w.Code, w.Body)
		}
		if w := askedUnder(g, "127.0.0.1:9620", "/readyz", with); w.Code != http.StatusOK {
			t.Errorf("%s: /readyz answers %d", header, w.Code)
		}
	}
	signedIn := newGuarded(t, Auth{Mode: AuthToken, TokenFile: secretFile(t, "0123456789abcdef")}, "127.0.0.1:9620")
	w := askedUnder(signedIn, "lockstep.example", "/api/v1/whoami", func(r *http.Request) {
		r.Header.Set("X-Forwarded-For", "198.51.100.7")
		r.Header.Set("Authorization", "Bearer 0123456789abcdef")
	})
	if w.Code != http.StatusOK {
		t.Errorf("mode token: got %d, %s, want a proxy in front to be fine", w.Code, w.Body)
	}
}
