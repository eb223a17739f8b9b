package ledger

import (
	"slices"
	"strings"
)

// State is the state of a run. A new state needs a constant and a row of [States] here, and the
// scripts that enter it. The sweep makes a run in a state of [IndexTime] due when its time comes.
// Any other outstanding state also needs a script that leaves it, and a reason that people can read
// (package admin, waiting.go).
type State string

const (
	StateScheduled State = "scheduled"
	StateDue       State = "due"
	StateWaiting   State = "waiting"
	StateRunning   State = "running"
	StateRetrying  State = "retrying"
	StateSucceeded State = "succeeded"
	StateFailed    State = "failed"
	StateLost      State = "lost"
	StateCanceled  State = "canceled"
	StateSkipped   State = "skipped"
	StateMissed    State = "missed"
)

// Tone is how a state appears to a person who scans a list. Each view has its own colors for it.
type Tone string

const (
	ToneGood   Tone = "good"
	ToneBad    Tone = "bad"
	ToneBusy   Tone = "busy"   // a worker executes it
	ToneNext   Tone = "next"   // a worker is about to execute it
	ToneWarn   Tone = "warn"   // it is held up
	TonePassed Tone = "passed" // its tick passed without a run
	ToneIdle   Tone = "idle"
)

// StateFacts is what a state means to everything that lists or shows runs.
type StateFacts struct {
	State State
	Final bool  // a run in it never runs again
	Tick  bool  // also the outcome of a tick that never became a run
	Index Index // the smallest index with all runs in it; "" for a final state
	Sign  string
	Tone  Tone
	Means string // a sentence without a subject, which is a run

	// Until is why a run in a state of [IndexTime] does not run: a sentence with %s for its time.
	Until string
}

var states = []StateFacts{
	{
		State: StateScheduled, Index: IndexTime, Sign: "◌", Tone: ToneIdle,
		Means: "becomes due at a later time", Until: "it is scheduled for %s",
	},
	{State: StateDue, Index: IndexQueue, Sign: "○", Tone: ToneNext, Means: "starts as soon as a worker takes it"},
	{State: StateWaiting, Index: IndexJob, Sign: "◐", Tone: ToneWarn, Means: "waits for its locks, and occupies no worker"},
	{State: StateRunning, Index: IndexWorker, Sign: "●", Tone: ToneBusy, Means: "has an attempt on a worker"},
	{
		State: StateRetrying, Index: IndexTime, Sign: "↻", Tone: ToneWarn,
		Means: "has a failed attempt, and becomes due again later", Until: "its last attempt failed; the next one is due at %s",
	},
	{State: StateSucceeded, Final: true, Sign: "✓", Tone: ToneGood, Means: "has done its work"},
	{State: StateFailed, Final: true, Sign: "✗", Tone: ToneBad, Means: "has failed and is not retried, or could not begin"},
	{State: StateLost, Final: true, Sign: "?", Tone: ToneBad, Means: "lost its worker (on_crash: abandon), or was lost with the data of Redis"},
	{State: StateCanceled, Final: true, Sign: "–", Tone: ToneIdle, Means: "was canceled"},
	{State: StateSkipped, Final: true, Tick: true, Sign: "·", Tone: TonePassed, Means: "was skipped by a policy or a person"},
	{State: StateMissed, Final: true, Tick: true, Sign: "·", Tone: TonePassed, Means: "passed its time before it could start"},
}

// States returns the facts about each state, the outstanding ones first.
func States() []StateFacts { return slices.Clone(states) }

// StateNames returns the names of all states, in the order of [States].
func StateNames() []string {
	names := make([]string, len(states))
	for i, facts := range states {
		names[i] = string(facts.State)
	}
	return names
}

// Facts returns the facts about a state. A newer build may have stored one that this build does not
// know: it counts as final, and its facts name no state.
func (s State) Facts() StateFacts {
	for _, facts := range states {
		if facts.State == s {
			return facts
		}
	}
	return StateFacts{Final: s != "", Sign: "·", Tone: ToneIdle}
}

// declareUntimed declares, for scripts, the states in which a run does not become due when its time
// comes. The final ones are among them, because a run that refuse.lua has parked is still
// outstanding.
func declareUntimed() string {
	var list []string
	for _, facts := range states {
		if facts.Index != IndexTime {
			list = append(list, string(facts.State)+" = true")
		}
	}
	return "local UNTIMED = {" + strings.Join(list, ", ") + "}\n"
}

// Final reports whether a run in this state never runs again.
func (s State) Final() bool { return s.Facts().Final }
