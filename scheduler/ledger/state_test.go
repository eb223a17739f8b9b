package ledger_test

import (
	"os"
	"strings"
	"testing"

	"lockstep/scheduler/ledger"
)

// TestEachStateHasAllFacts also looks for each state in the section of doc.go.
func TestEachStateHasAllFacts(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "# The states of a run")
	section, invariants, found := strings.Cut(section, "# The invariants")
	diagram, final, inText := strings.Cut(section, "Besides these transitions")
	if !found || !inText || invariants == "" {
		t.Fatal("doc.go has no section about the states")
	}
	seen := make(map[ledger.State]bool)
	for _, facts := range ledger.States() {
		if facts.State == "" || seen[facts.State] || facts.Sign == "" || facts.Tone == "" {
			t.Errorf("%+v: want a name of its own, a sign and a tone", facts)
		}
		seen[facts.State] = true
		if facts.Means == "" || (facts.Index == ledger.IndexTime) != (strings.Count(facts.Until, "%s") == 1) {
			t.Errorf("%+v: want what it means, and for a state with a time, why the run waits until then", facts)
		}
		if facts.Final != (facts.Index == "") || facts.Tick && !facts.Final {
			t.Errorf("%+v: want an index, unless it is final", facts)
		}
		if facts.State.Facts() != facts || facts.State.Final() != facts.Final {
			t.Errorf("%s has the facts %+v, want %+v", facts.State, facts.State.Facts(), facts)
		}
		where := diagram
		if facts.Final {
			where = final
		}
		if !strings.Contains(where, string(facts.State)) {
			t.Errorf("doc.go does not show %s", facts.State)
		}
	}
	if facts := ledger.State("of a newer build").Facts(); facts.State != "" || !facts.Final || facts.Sign == "" || facts.Tone == "" {
		t.Errorf("an unknown state has the facts %+v", facts)
	}
	if ledger.State("").Final() {
		t.Error("no state is a final one")
	}
}
