package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/worker"
)

// Snapshot is the lock space at one moment: its sessions, holds and waits. It must be treated as
// read-only.
type Snapshot struct {
	At      time.Time // by the server's clock
	Holders []Holder  // by the time of their grant
	Waits   []Wait    // by ticket

	sessions []session
	permits  map[string]space.PermitRecord // those in use, or wanted
	space    Space                         // for permits that are neither
}

// session is one session with its card.
type session struct {
	id     locks.SessionID
	left   time.Duration
	card   worker.Card
	worker bool // the card is a worker's
}

// Snapshot reads the lock space. It reads the sessions second, so that they include the session of
// every holder unless that has ended.
func (r *Reader) Snapshot(ctx context.Context) (*Snapshot, error) {
	listing, err := r.space.Read(ctx)
	if err != nil {
		return nil, err
	}
	records, _, err := r.space.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{At: listing.At, sessions: make([]session, len(records)), space: r.space}
	cards := make(map[locks.SessionID]worker.Card, len(records))
	for i, record := range records {
		s.sessions[i] = newSession(record)
		cards[record.ID] = s.sessions[i].card
	}
	s.Holders = make([]Holder, len(listing.Holds))
	names := make(map[locks.HoldID]Blocker, len(listing.Holds)+len(listing.Waits))
	for i, hold := range listing.Holds {
		s.Holders[i] = newHolder(hold, cards[hold.Session], listing.At)
		names[hold.ID] = Blocker{ID: s.Holders[i].name(), Worker: hold.Session}
	}
	for _, wait := range listing.Waits {
		if _, granted := names[wait.Request]; granted { // granted between two pages of the listing
			continue
		}
		s.Waits = append(s.Waits, newWait(wait, listing.At))
		names[wait.Request] = Blocker{ID: s.Waits[len(s.Waits)-1].name(), Worker: wait.Session, Waits: true}
	}
	if s.permits, err = r.space.Permits(ctx, permitsOf(s)...); err != nil {
		return nil, err
	}
	blocked := space.BlockedBy(listing.Holds, listing.Waits)
	for i := range s.Waits {
		for _, id := range blocked[s.Waits[i].ID] {
			blocker := names[id]
			s.Waits[i].BlockedBy = append(s.Waits[i].BlockedBy, blocker.ID)
			s.Waits[i].Blockers = append(s.Waits[i].Blockers, blocker)
		}
	}
	slices.SortFunc(s.Holders, func(a, b Holder) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.HoldID, b.HoldID))
	})
	slices.SortFunc(s.Waits, func(a, b Wait) int { return cmp.Compare(a.Ticket, b.Ticket) })
	return s, nil
}

// permitsOf returns the resources with permits that are held or wanted.
func permitsOf(s *Snapshot) []string {
	names := make(map[string]bool)
	for _, h := range s.Holders {
		for name := range h.Permits {
			names[name] = true
		}
	}
	for _, w := range s.Waits {
		for name := range w.Permits {
			names[name] = true
		}
	}
	return slices.Collect(maps.Keys(names))
}

// newSession reads a card. Every session has one; a worker's is the one with slots and queues.
func newSession(record locks.SessionRecord) session {
	s := session{id: record.ID, left: record.LeaseLeft}
	if err := json.Unmarshal(record.Card, &s.card); err != nil {
		s.card = worker.Card{} // another program's kind of card
	}
	s.worker = s.card.Slots > 0 && s.card.Queues != nil
	return s
}

// about is what a holder tells about itself: a run its job and id, `lock exec` its command.
type about struct {
	Job     string     `json:"job"`
	Run     jobs.RunID `json:"run"`
	Command any        `json:"command"` // a line, or a list of words
}

func readInfo(info json.RawMessage) about {
	var a about
	if json.Unmarshal(info, &a) != nil {
		return about{} // not an object: it is shown as it is
	}
	return a
}

func purpose(run Text, info json.RawMessage) string {
	if run != "" {
		return string(run)
	}
	switch command := readInfo(info).Command.(type) {
	case string:
		return command
	case []any:
		words := make([]string, len(command))
		for i, word := range command {
			words[i] = fmt.Sprint(word)
		}
		return strings.Join(words, " ")
	}
	return ""
}

func newHolder(hold locks.HoldRecord, card worker.Card, now time.Time) Holder {
	holder := Holder{
		Worker: hold.Session, Host: Text(card.Host), PID: card.PID, HoldID: hold.ID, Token: hold.Token, Bundle: hold.Names,
		Since: Instant{hold.Since}, Held: Seconds(max(0, now.Sub(hold.Since))), LeaseLeft: Seconds(hold.LeaseLeft),
		Modes: newModes(hold.Items), Resting: hold.Resting, Stuck: stuckOf(card, hold.Token),
	}
	if asked := hold.Asked; asked != nil {
		// A seized hold no longer exists, unless Redis has lost data and its holder has not
		// reconnected yet.
		force := map[locks.Force]string{locks.Ask: "ask", locks.Take: "take", locks.Seize: "take"}[asked.Force]
		holder.Asked = &Asked{force, Text(asked.Revocation.By), Text(asked.Revocation.Reason)}
	}
	if a := readInfo(hold.Info); a.Run != "" {
		holder.Job, holder.RunID = Text(a.Job), Text(a.Run)
	} else {
		holder.Info = hold.Info
	}
	return holder
}

// stuckOf returns the card's entry of the attempt under a token if that attempt is stuck, or nil.
func stuckOf(card worker.Card, token locks.Token) *Stuck {
	for _, one := range card.Stuck {
		if one.Token == token {
			return &Stuck{Since: Instant{one.Since}, Because: one.Because}
		}
	}
	return nil
}

func newWait(record locks.WaitRecord, now time.Time) Wait {
	wait := Wait{
		ID: record.Request, Worker: Text(record.Session), State: record.State, Since: Instant{record.Since},
		Waited: Seconds(max(0, now.Sub(record.Since))), Wants: visible(record.Names), BlockedBy: []string{},
		Modes: newModes(record.Items), Ticket: record.Ticket,
	}
	if a := readInfo(record.Info); a.Run != "" {
		wait.Job, wait.RunID = Text(a.Job), Text(a.Run)
	} else {
		wait.Info = record.Info
	}
	return wait
}

// name is the id by which a holder or waiter appears as a blocker.
func (h *Holder) name() string { return string(cmp.Or(h.RunID, Text(h.HoldID))) }
func (w *Wait) name() string   { return string(cmp.Or(w.RunID, Text(w.ID))) }

// visible returns the names of a bundle without the lock that each run has on itself, unless the
// bundle has nothing else.
func visible(bundle []string) []string {
	own := jobs.RunResource("")
	names := make([]string, 0, len(bundle))
	for _, name := range bundle {
		if !strings.HasPrefix(name, own) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return bundle
	}
	return names
}

// Workers returns the replicas, by id.
func (s *Snapshot) Workers() []Worker {
	busy := make(map[locks.SessionID]int)
	for _, holder := range s.Holders {
		if holder.RunID != "" {
			busy[holder.Worker]++
		}
	}
	workers := []Worker{}
	for _, session := range s.sessions {
		if !session.worker {
			continue
		}
		card := session.card
		w := Worker{
			ID: session.id, Host: card.Host, PID: card.PID, Version: card.Version, Config: card.Config, State: card.State,
			Slots: card.Slots, Busy: busy[session.id], Queues: card.Queues, StartedAt: Instant{card.StartedAt}, Drifted: card.Drifted,
			Admin:     Text(card.Admin),
			Pass:      card.Pass,
			LeaseLeft: Seconds(session.left),
			Clock:     Seconds(card.Clock),
			Disputed:  card.Disputed,
			Key:       card.Key,
			Refused:   card.Refused,
		}
		if session.left <= 0 {
			w.State = Gone
		}
		workers = append(workers, w)
	}
	slices.SortFunc(workers, func(a, b Worker) int { return cmp.Compare(a.ID, b.ID) })
	return workers
}

// Workers returns the replicas, by id. Other users of the lock library also have sessions, but are
// not workers.
func (r *Reader) Workers(ctx context.Context) ([]Worker, error) {
	s, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s.Workers(), nil
}

// Worker returns one replica.
func (r *Reader) Worker(ctx context.Context, id locks.SessionID) (*Worker, error) {
	s, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s.Worker(id)
}

// Worker returns one replica.
func (s *Snapshot) Worker(id locks.SessionID) (*Worker, error) {
	for _, w := range s.Workers() {
		if w.ID == id {
			return &w, nil
		}
	}
	return nil, unknownError(fmt.Sprintf("worker %s is not there: no worker of that id has a session", id))
}
