package configs

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// promtool returns the path of promtool. Without it, the test skips.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("LOCKSTEP_TEST_ALL") == "1" {
			t.Fatal("promtool is not installed (Debian, Ubuntu: the package prometheus)")
		}
		t.Skip("promtool is not installed (Debian, Ubuntu: the package prometheus)")
	}
	return path
}

func TestRulesOfPrometheusPassTheirTests(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"test", "rules", "rules_test.yml"}} {
		tool := exec.CommandContext(t.Context(), promtool(t), args...)
		tool.Dir = "deploy"
		if output, err := tool.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v:\n%s", strings.Join(args, " "), err, output)
		}
	}
}

// TestEachAlertIsExplainedAndTested: in the README, with a runbook, and in the tests of the rules.
func TestEachAlertIsExplainedAndTested(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile("deploy/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	rules, readme, tests := read("rules.yml"), read("README.md"), read("rules_test.yml")
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(rules, -1)
	if len(alerts) < 10 {
		t.Fatalf("%d alerts are found", len(alerts))
	}
	for i, alert := range alerts {
		from := strings.Index(rules, alert[0])
		text := rules[from:]
		if i+1 < len(alerts) {
			text = rules[from:strings.Index(rules, alerts[i+1][0])]
		}
		for _, part := range []string{"summary: ", "runbook: ", "Look: `lockstep ", " Do:", "severity: "} {
			if !strings.Contains(text, part) {
				t.Errorf("%s has no %q", alert[1], part)
			}
		}
		if !strings.Contains(readme, "| `"+alert[1]+"` |") {
			t.Errorf("the README does not explain %s", alert[1])
		}
		if !strings.Contains(tests, `labels: ALERTS{alertname="`+alert[1]+`"`) {
			t.Errorf("no test sees %s fire", alert[1])
		}
	}
}
