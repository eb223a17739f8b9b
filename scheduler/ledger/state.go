package ledger

import "slices"

// State is the state of a run. A new state needs a constant and a row of [States] here, the script
// that enters and leaves it, and, unless it is final, the reason why a run in it does not run
// (package admin, waiting.go).
type State string

const (
	StateScheduled State = "scheduled" // not before At
	StateDue       State = "due"       // its delivery is on its way
	StateWaiting   State = "waiting"   // for its bundle, in the lock space
	StateRunning   State = "running"
	StateRetrying  State = "retrying" // after a failed attempt; the next one not before At

	// The final ones.
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
	Tick  bool  // the outcome of a tick that never became a run
	Index Index // the smallest index with all runs in it; "" for a final state
	Sign  string
	Tone  Tone
}

var states = []StateFacts{
	{State: StateScheduled, Index: IndexTime, Sign: "◌", Tone: ToneIdle},
	{State: StateDue, Index: IndexQueue, Sign: "○", Tone: ToneNext},
	{State: StateWaiting, Index: IndexJob, Sign: "◐", Tone: ToneWarn},
	{State: StateRunning, Index: IndexWorker, Sign: "●", Tone: ToneBusy},
	{State: StateRetrying, Index: IndexTime, Sign: "↻", Tone: ToneWarn},
	{State: StateSucceeded, Final: true, Sign: "✓", Tone: ToneGood},
	{State: StateFailed, Final: true, Sign: "✗", Tone: ToneBad},
	{State: StateLost, Final: true, Sign: "?", Tone: ToneBad},
	{State: StateCanceled, Final: true, Sign: "–", Tone: ToneIdle},
	{State: StateSkipped, Final: true, Tick: true, Sign: "·", Tone: TonePassed},
	{State: StateMissed, Final: true, Tick: true, Sign: "·", Tone: TonePassed},
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

// Final reports whether a run in this state never runs again.
func (s State) Final() bool { return s.Facts().Final }
