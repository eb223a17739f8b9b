package cmd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// prometheus is a Prometheus of its own that scrapes the workers of a fleet every second, with the
// rules in configs/deploy. Their alerts do not wait (for), and a test may replace their thresholds.
type prometheus struct {
	t       *testing.T
	fleet   *fleet
	address string
	targets string   // a file with the addresses of the workers
	seen    []string // these, also those of workers that have died
}

// startPrometheus starts one. Each pair of thresholds, an old one and a new one, replaces a text of
// the rules. Without the program, the test skips.
func startPrometheus(t *testing.T, f *fleet, thresholds ...string) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		if allTests() {
			t.Fatal("prometheus is not installed (Debian, Ubuntu: the package prometheus)")
		}
		t.Skip("prometheus is not installed (Debian, Ubuntu: the package prometheus)")
	}
	rules := alertRules(t)
	for i := 0; i < len(thresholds); i += 2 {
		if !strings.Contains(rules, thresholds[i]) {
			t.Errorf("no rule has %q", thresholds[i])
		}
		rules = strings.ReplaceAll(rules, thresholds[i], thresholds[i+1])
	}
	dir := t.TempDir()
	p := &prometheus{t: t, fleet: f, targets: filepath.Join(dir, "targets.json")}
	p.discover()
	write(t, filepath.Join(dir, "rules.yml"), regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAllString(rules, ""))
	config := filepath.Join(dir, "prometheus.yml")
	write(t, config, fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
  - job_name: lockstep
    honor_labels: true
    file_sd_configs: [{files: [%q], refresh_interval: 1s}]
`, p.targets))
	server := launchProgram(t, program, os.Environ(), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:0")
	listens := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
	eventually(t, time.Minute, "Prometheus listens", func() bool {
		if found := listens.FindStringSubmatch(server.stderr.String()); found != nil {
			p.address = found[1]
		}
		return p.address != ""
	})
	return p
}

// alertRules returns the rules as they are delivered.
func alertRules(t *testing.T) string {
	t.Helper()
	rules, err := os.ReadFile("../configs/deploy/rules.yml")
	must(t, err)
	return string(rules)
}

// discover adds the workers that serve metrics now to the scraped ones.
func (p *prometheus) discover() {
	p.t.Helper()
	for _, w := range p.fleet.measured() {
		if !slices.Contains(p.seen, w.Admin) {
			p.seen = append(p.seen, w.Admin)
		}
	}
	text, err := json.Marshal([]map[string][]string{{"targets": p.seen}})
	must(p.t, err)
	write(p.t, p.targets+".new", string(text))
	must(p.t, os.Rename(p.targets+".new", p.targets))
}

// seriesValue is one result of a query.
type seriesValue struct {
	Metric map[string]string
	Value  [2]any
}

// query returns the values of a query.
func (p *prometheus) query(expr string) (values []string) {
	p.t.Helper()
	for _, one := range p.samples(expr) {
		values = append(values, fmt.Sprint(one.Value[1]))
	}
	return values
}

// samples returns the results of a query. An error of Prometheus ends the test; while it starts,
// there is none.
func (p *prometheus) samples(expr string) []seriesValue {
	p.t.Helper()
	response, err := http.Get("http://" + p.address + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	var reply struct {
		Status, Error string
		Data          struct{ Result []seriesValue }
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil || reply.Status != "success" {
		p.t.Fatalf("%s: %s, %v", expr, reply.Error, err)
	}
	return reply.Data.Result
}

// wait waits until a query has exactly this one value.
func (p *prometheus) wait(expr, value string) {
	p.t.Helper()
	var got []string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s: got %q, want %q", expr, got, value)
		}
	}()
	eventually(p.t, 90*time.Second, expr+" is "+value, func() bool {
		got = p.query(expr)
		return len(got) == 1 && got[0] == value
	})
}

// panelQueries returns the queries of the dashboard, by their panels, with values for its
// variables.
func panelQueries(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../configs/deploy/dashboard.json")
	must(t, err)
	var dashboard struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &dashboard))
	queries := make(map[string][]string)
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q has no query", panel.Title)
		}
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*").Replace(target.Expr)
			queries[panel.Title] = append(queries[panel.Title], expr)
		}
	}
	return queries
}

// TestPrometheusSeesARunThatIsLostWithItsWorker: with the rules as they are delivered, and each
// query of the dashboard has data.
func TestPrometheusSeesARunThatIsLostWithItsWorker(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {once: {command: HOLD, env: {AT: during}, on_crash: abandon}, ticks: {every: 1s, command: ["true"]}}`, long)
	f.startAll(2)
	p := startPrometheus(t, f)
	const ends = `fleet:lockstep_runs_ended_total:max{job="once",outcome="lost",trigger="enqueue"}`
	p.wait(ends, "0")
	p.wait("sum(up)", "2")
	p.wait("sum(lockstep_duty)", "1")

	run := f.enqueue("once", "x")
	f.held(run)
	for panel, queries := range panelQueries(t) {
		for _, expr := range queries {
			eventually(t, 90*time.Second, fmt.Sprintf("panel %q has data: %s", panel, expr), func() bool { return len(p.query(expr)) > 0 })
		}
	}

	worker, _ := f.runner(run)
	worker.killChild()
	f.await(run, "lost")
	// The parent has started the next child, which serves metrics at another address.
	f.settled()
	eventually(t, time.Minute, "two workers serve metrics", func() bool { return len(f.measured()) == 2 })
	p.discover()
	p.wait(ends, "1")
	p.wait(`ALERTS{alertname="LockstepRunsLost",alertstate="firing",job="once"}`, "1")
	// the address of the killed child
	p.wait(`ALERTS{alertname="LockstepWorkerGone",alertstate="firing"}`, "1")
	p.wait("sum(lockstep_duty)", "1")
	p.wait(`sum(lockstep_runs_ended_total{outcome="lost"})`, "1")
	if got := p.query(`ALERTS{alertname="LockstepPoisonJob"}`); len(got) != 0 {
		t.Errorf("one crash is a poison job: %q", got)
	}
	f.drain()
}

// TestRunbooksNameCommandsThatExist reads them from the alerts.
func TestRunbooksNameCommandsThatExist(t *testing.T) {
	t.Parallel()
	text := regexp.MustCompile(`{{[^}]*}}`).ReplaceAllString(strings.Join(strings.Fields(alertRules(t)), " "), "x")
	commands := regexp.MustCompile("`lockstep ([^`]*)`").FindAllStringSubmatch(text, -1)
	if len(commands) < 20 {
		t.Errorf("%d commands are found", len(commands))
	}
	for _, command := range commands {
		if err := knows(t, words(command[1])); err != nil {
			t.Errorf("%q: %v", command[0], err)
		}
	}
}
