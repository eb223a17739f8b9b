package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// event is what one request reports.
type event struct {
	source   string // of CloudEvents: the namespace
	messages []ledger.Message
}

// eventTypes are the types of CloudEvents.
var eventTypes = map[jobs.Event]string{
	jobs.EventFailed:    "lockstep.run.failed",
	jobs.EventLost:      "lockstep.run.lost",
	jobs.EventMissed:    "lockstep.tick.missed",
	jobs.EventLate:      "lockstep.job.late",
	jobs.EventRecovered: "lockstep.job.recovered",
	jobs.EventRefused:   "lockstep.config.refused",
	eventTest:           "lockstep.test",
}

// eventTest is the event of a test message.
const eventTest jobs.Event = "test"

// typeCombined is the type of several events that are sent together.
const typeCombined = "lockstep.combined"

// cloudEvent is the JSON of a request.
type cloudEvent struct {
	SpecVersion     string `json:"specversion"`
	ID              string `json:"id"`
	Source          string `json:"source"`
	Type            string `json:"type"`
	Subject         string `json:"subject,omitempty"` // the job
	Time            string `json:"time"`
	DataContentType string `json:"datacontenttype"`
	Data            any    `json:"data"`
}

// combined is the data of several events.
type combined struct {
	Count  int            `json:"count"`
	Events map[string]int `json:"events"` // how many of each
	First  []data         `json:"first"`
	IDs    []string       `json:"ids"` // of all of them
}

// firstMost is how many of several events are described.
const firstMost = 5

// data is the data of one event.
type data struct {
	ID      string `json:"id"`
	Event   string `json:"event"`
	Text    string `json:"text"` // for people
	Job     string `json:"job,omitempty"`
	Run     string `json:"run,omitempty"`
	Tick    string `json:"tick,omitempty"`
	Upto    string `json:"last_tick,omitempty"` // of a range of ticks
	Trigger string `json:"trigger,omitempty"`
	Attempt int    `json:"attempts,omitempty"`
	Fails   int    `json:"failures,omitempty"`
	Crashes int    `json:"crashes,omitempty"`
	Worker  string `json:"worker,omitempty"`
	Started string `json:"started_at,omitempty"`
	At      string `json:"at"`
	Reason  string `json:"reason,omitempty"`
	Error   string `json:"error,omitempty"`
	Success string `json:"last_success_at,omitempty"` // of a late job
}

func dataOf(m *ledger.Message) data {
	d := data{
		ID: m.ID, Event: string(m.Event), Text: sentence(m), Job: m.Job, Run: string(m.Run), Tick: instant(m.Tick), Upto: instant(m.Upto),
		Trigger: string(m.Trigger), Attempt: m.Attempt, Fails: m.Fails, Crashes: m.Crashes, Worker: string(m.Worker),
		Started: instant(m.Started), At: instant(m.At), Reason: m.Reason, Error: m.Error,
	}
	if !m.Never {
		d.Success = instant(m.Silent)
	}
	return d
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// body returns the CloudEvent. It is the same whenever the same messages are sent.
func (e *event) body() []byte {
	first := &e.messages[0]
	c := cloudEvent{SpecVersion: "1.0", ID: first.ID, Source: e.source, Type: eventTypes[first.Event], Subject: first.Job,
		Time: instant(first.At), DataContentType: "application/json", Data: dataOf(first)}
	if c.Type == "" {
		c.Type = "lockstep." + string(first.Event) // of a newer build
	}
	if n := len(e.messages); n > 1 {
		all := combined{Count: n, Events: make(map[string]int)}
		for i := range e.messages {
			m := &e.messages[i]
			all.Events[string(m.Event)]++
			all.IDs = append(all.IDs, m.ID)
			if i < firstMost {
				all.First = append(all.First, dataOf(m))
			}
		}
		c.ID, c.Type, c.Data = fmt.Sprintf("%s+%d", first.ID, n-1), typeCombined, all
	}
	text, err := json.Marshal(c)
	if err != nil {
		panic("notify: an event is plain data: " + err.Error())
	}
	return text
}

// text returns the message for people.
func (e *event) text() string {
	if len(e.messages) == 1 {
		return sentence(&e.messages[0])
	}
	counts := make(map[jobs.Event]int)
	for i := range e.messages {
		counts[e.messages[i].Event]++
	}
	var parts []string
	for _, event := range jobs.Events() {
		if n := counts[event]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, event))
		}
	}
	about := "the workers"
	if job := e.messages[0].Job; job != "" {
		about = job
	}
	lines := []string{fmt.Sprintf("%d messages about %s: %s", len(e.messages), about, strings.Join(parts, ", "))}
	for i := range e.messages[:min(len(e.messages), firstMost)] {
		lines = append(lines, "- "+jobs.Cut(sentence(&e.messages[i]), 300))
	}
	if more := len(e.messages) - firstMost; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// sentence describes a message to people.
func sentence(m *ledger.Message) string {
	what := string(m.Run)
	if what == "" {
		what = m.Job
	}
	because := m.Error
	if because == "" {
		because = m.Reason
	}
	if because != "" {
		because = ": " + strings.TrimSpace(because)
	}
	switch m.Event {
	case jobs.EventFailed:
		return fmt.Sprintf("%s has failed%s%s", what, attempts(m), because)
	case jobs.EventLost:
		return fmt.Sprintf("%s is lost%s%s", what, attempts(m), because)
	case jobs.EventMissed:
		if !m.Upto.IsZero() {
			return fmt.Sprintf("the ticks of %s from %s to %s were missed%s", m.Job, instant(m.Tick), instant(m.Upto), because)
		}
		return fmt.Sprintf("%s was missed%s", what, because)
	case jobs.EventLate:
		if m.Never {
			return fmt.Sprintf("%s is late: it has had no success since it was registered at %s", m.Job, instant(m.Silent))
		}
		return fmt.Sprintf("%s is late: its last success was at %s", m.Job, instant(m.Silent))
	case jobs.EventRecovered:
		return fmt.Sprintf("%s has recovered: %s succeeded", m.Job, what)
	case jobs.EventRefused:
		return fmt.Sprintf("the worker %s has refused its new config, and keeps the old one%s", m.Worker, because)
	}
	return fmt.Sprintf("%s: %s%s", m.Event, what, because)
}

// attempts describes how often a run was tried, if that was more than once.
func attempts(m *ledger.Message) string {
	if m.Attempt < 2 {
		return ""
	}
	return fmt.Sprintf(" after %d attempts", m.Attempt)
}
