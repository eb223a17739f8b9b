package admin

import (
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// sign is how a state appears to a person who scans a list.
type sign struct {
	mark string
	tone ledger.Tone
}

// signs are those of words that are no states of runs.
var signs = map[string]sign{
	string(space.Offered):        {"◑", ledger.ToneBusy},
	string(space.Lapsed):         {"◌", ledger.ToneWarn},
	string(space.Kept):           {"‖", ledger.ToneWarn},
	"crashed":                    {"✗", ledger.ToneBad},
	"lost lease":                 {"!", ledger.ToneBad},
	"handed back":                {"↩", ledger.ToneIdle},
	"released":                   {"✓", ledger.ToneGood},
	"granted":                    {"✓", ledger.ToneGood},
	"revoked":                    {"⊘", ledger.ToneWarn},
	"expired":                    {"!", ledger.ToneBad},
	"timed out":                  {"◷", ledger.ToneWarn},
	"deadlock":                   {"∞", ledger.ToneBad},
	"refused":                    {"✗", ledger.ToneBad},
	"holds":                      {"●", ledger.ToneBusy},
	"waits":                      {"◐", ledger.ToneWarn},
	"late":                       {"!", ledger.ToneBad},
	"stuck":                      {"!", ledger.ToneBad},
	"paused":                     {"‖", ledger.ToneWarn},
	"queue paused":               {"⊘", ledger.ToneWarn},
	"drifted":                    {"≠", ledger.ToneWarn},
	"no worker carries it":       {"∅", ledger.ToneWarn},
	"no worker serves its queue": {"∅", ledger.ToneWarn},
	"ready":                      {"✓", ledger.ToneGood},
	"draining":                   {"↓", ledger.ToneWarn},
	Gone:                         {"✗", ledger.ToneBad},
}

// SignOf returns the sign and the tone of a word: a state of a run, a wait or a worker, an outcome
// of an attempt, an end of a hold or a wait, or one of [Notes]. A view shows the sign beside the
// word, so that no reader needs to tell colors apart.
func SignOf(word string) (mark string, tone ledger.Tone) {
	if s, known := signs[word]; known {
		return s.mark, s.tone
	}
	facts := ledger.State(word).Facts()
	return facts.Sign, facts.Tone
}
