package cmd

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
)

// status sends a request to a worker, at the loopback address of its port, as a user with this
// password; "" sends none.
func status(t *testing.T, page, path, password string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(page)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		request.SetBasicAuth("admin", password)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// With or without a sign-in, the command line can reload the config: access to Redis is what
// counts.
func TestWorkerOnAPublicAddress(t *testing.T) {
	t.Parallel()
	password := writeFile(t, "password", "of-a-test\n")
	for name, test := range map[string]struct {
		env         []string
		log         string
		page, known int // the status without a password, and with the right one
	}{
		"none":  {nil, "only /livez, /readyz and /metrics are served", http.StatusForbidden, http.StatusForbidden},
		"basic": {[]string{"LOCKSTEP_ADMIN__AUTH__MODE=basic", "LOCKSTEP_ADMIN__AUTH__PASSWORD_FILE=" + password}, `"auth":"basic"`, http.StatusUnauthorized, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.New(t, redistest.Options{})
			config := writeFile(t, "lockstep.yaml", jobNamed("before"))
			env := toolEnv(t, append(test.env, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=0.0.0.0:0", "LOCKSTEP_CONFIG="+config)...)
			worker := launch(t, env, "start")
			page := pageOf(t, worker)
			if !strings.Contains(worker.stderr.String(), test.log) {
				t.Errorf("the log lacks %q: %s", test.log, worker.stderr)
			}
			for path, want := range map[string][2]int{
				"/": {test.page, test.known}, "/api/v1/jobs": {test.page, test.known}, "/readyz": {200, 200}, "/livez": {200, 200}, "/metrics": {200, 200},
			} {
				if without, with := status(t, page, path, ""), status(t, page, path, "of-a-test"); [2]int{without, with} != want {
					t.Errorf("%s: status %d without the password and %d with it, want %v", path, without, with, want)
				}
			}
			write(t, config, jobNamed("after"))
			states := ask[[]admin.Config](t, env, "config", "reload")
			if len(states) != 1 || states[0].Reloads != 1 || !states[0].RefusedAt.IsZero() {
				t.Errorf("got %+v, want one worker that has read its config", states)
			}
			if stdout, _, _ := runTool(t, env, "worker", "ls", "-o", "yaml"); strings.Contains(stdout, "ticket") {
				t.Errorf("a ticket is shown: %s", stdout)
			}
			_, port, _ := net.SplitHostPort(page)
			if stdout, stderr, code := runTool(t, append(env, "LOCKSTEP_ADMIN__LISTEN=0.0.0.0:"+port), "health"); code != 0 {
				t.Errorf("health: %d, %s%s", code, stdout, stderr)
			}
		})
	}
}

// A missing sign-in file is a config error, reported at once, before Redis is asked.
func TestWorkerWithoutItsPasswordFileDoesNotStart(t *testing.T) {
	t.Parallel()
	for want, secret := range map[string]string{"no such file or directory": "/nowhere/password", "it is empty": writeFile(t, "empty", "\n")} {
		config := writeFile(t, "lockstep.yaml", fmt.Sprintf("redis: {url: redis://127.0.0.1:1}\nadmin: {auth: {mode: token, token_file: %s}}\n", secret))
		_, stderr, code := runTool(t, toolEnv(t), "start", "-c", config)
		if want := "admin.auth.token_file " + secret + ": " + want; code != exitConfig || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, %s, want %d and %s", code, stderr, exitConfig, want)
		}
	}
}
