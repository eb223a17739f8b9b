package web

import (
	"os"
	"regexp"
	"testing"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// TestRulesAndDashboardNameOnlyMetricsThatExist compares configs/deploy with what a worker shows.
func TestRulesAndDashboardNameOnlyMetricsThatExist(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Registered[0].LastSuccess = fakes.Noon
	f.Queues = []ledger.DueQueue{{Name: "default", Due: 1}}
	f.Mailboxes = []ledger.MailOf{{Target: "ops", Waiting: 1}}
	s, m := measured(t, f, &admin.Config{Digest: "9f2c1e", LoadedAt: admin.Instant{Time: fakes.Noon}})
	m.took.WithLabelValues("j").Observe(1)
	m.scripts.WithLabelValues("ledger/claim").Observe(.001)

	known := make(map[string]bool)
	// the series, and the names of histograms
	for _, line := range regexp.MustCompile(`(?m)^(?:# HELP )?(lockstep_\w+)`).FindAllStringSubmatch(tells(t, s), -1) {
		known[line[1]] = true
	}
	named := 0
	for _, file := range []string{"rules.yml", "rules_test.yml", "dashboard.json", "README.md"} {
		text, err := os.ReadFile("../../../configs/deploy/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\blockstep_[a-z_]+\b`).FindAllString(string(text), -1) {
			named++
			if !known[name] {
				t.Errorf("%s names %s, which no worker shows", file, name)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d names are found", named)
	}
}
