package space

import (
	"encoding/json"
	"strings"
	"time"
)

// HoldRecord is a granted bundle.
type HoldRecord struct {
	ID      HoldID
	Session SessionID
	Token   Token
	Since   time.Time       // of the grant, by the server's clock
	Info    json.RawMessage // from the holder; nil if it gave none
	Names   []string        // sorted
	Items   []Item          // the same, with how each is held
	// Resting means that the hold was released or its holder died, but its bundle stays taken
	// (MinHold, CrashDelay).
	Resting bool
	// LeaseLeft is the time until its session ends unless renewed, or until its rest ends. It is 0
	// when that time is over and no script has noticed yet.
	LeaseLeft time.Duration
	Asked     *Asked // set by a revocation; nil without one
}

// WaitState is the state of a wait.
type WaitState string

const (
	Waiting WaitState = "waiting" // in the queues of its resources
	// Offered: its bundle is reserved for it for a moment; only for waits of runs.
	Offered WaitState = "offered"
	// Lapsed: the offer was not taken in time. Others may pass, the ticket stays.
	Lapsed WaitState = "lapsed"
	// Kept: its class gets no offers at this time (its queue is paused). Others may pass, the
	// ticket stays.
	Kept WaitState = "kept"
)

// WaitRecord is a queued request for a bundle.
type WaitRecord struct {
	Request HoldID
	// Session is "" for a wait that belongs to the space: that of a run, which waits without a
	// worker.
	Session SessionID
	Since   time.Time // when it was queued, by the server's clock
	Ticket  uint64    // its place: lower tickets came earlier
	State   WaitState
	Names   []string // sorted
	Items   []Item   // the same, with how each is wanted
	Under   []HoldID // the holds that it is nested in
	Info    json.RawMessage
}

// SessionRecord is one session.
type SessionRecord struct {
	ID        SessionID
	Card      json.RawMessage // its description of itself
	Format    int             // the highest layout that its build can write
	LeaseLeft time.Duration   // 0 when it has ended and no script has noticed yet
}

// PermitLimit is a declared number of permits.
type PermitLimit struct {
	Permits int
	Version int64
}

// PermitRecord is a declared number of permits and how many of them are taken, including current
// offers.
type PermitRecord struct {
	PermitLimit
	Used int
}

// LockRecord is one resource with its holders and their mode.
type LockRecord struct {
	Name  string
	At    time.Time // when it was read, by the server's clock
	Mode  Mode      // "" when the resource is free
	Limit int       // the number of permits declared; 0 without a declaration
	// Used is how many permits or shares are taken, including current offers; 1 when held
	// exclusively.
	Used  int
	Holds []HoldRecord
}

// Holder returns the hold with a token, or nil if it is not among those that were read.
func (l *LockRecord) Holder(token Token) *HoldRecord {
	for i := range l.Holds {
		if l.Holds[i].Token == token {
			return &l.Holds[i]
		}
	}
	return nil
}

// Revocation names the actor that wants a lock back, and its reason.
type Revocation struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Force is how forcefully a lock is revoked.
type Force string

const (
	// Ask asks the holder, which learns of it through Hold.Asked and decides by itself.
	Ask Force = "a"
	// Take ends the context of the hold with the cause ErrRevoked. The lock passes on when its
	// holder has released it, or when the holder's session has ended.
	Take Force = "t"
	// Seize frees the lock at once, and then ends the context of the hold. Until the holder has
	// received that, two holders may work. Guards refuse the token of the seized hold once they
	// have seen a newer one. During a grace period, before the holder has re-asserted the hold,
	// Seize acts like Take, since nothing passes on.
	Seize Force = "f"
)

// Asked is a revocation of a hold, with its force.
type Asked struct {
	Force      Force
	Revocation Revocation
}

// parseHold reads a hold as it is stored in the space.
func parseHold(member string, left time.Duration) (HoldRecord, bool) {
	f, _ := Holds.Parse(member)
	session, id, ok := strings.Cut(f.Session, "\x00")
	if !ok || f.Items == "" {
		return HoldRecord{}, false
	}
	token, _ := ParseToken(f.Token)
	h := HoldRecord{
		ID: HoldID(id), Session: SessionID(session), Token: token, Since: Time(Int(f.Since)),
		Info: rawInfo(f.Info), Items: ParseItems(FieldsOf(f.Items)), LeaseLeft: left,
	}
	h.Names = NamesOf(h.Items)
	if session == "@" {
		h.Resting, h.Session = true, SessionOf(h.ID)
	}
	if f.Asked != "" {
		h.Asked = &Asked{Force(f.Asked[:1]), ParseRevocation(f.Asked[1:])}
	}
	return h, true
}

// addWait adds the wait of one index entry, session \0 w \0 id, and its record.
func (l *Listing) addWait(member, record string) {
	entry := strings.SplitN(member, "\x00", 3)
	f, _ := Waits.Parse(record)
	if len(entry) != 3 || entry[1] != "w" || f.Items == "" {
		return
	}
	session := SessionID(f.Session)
	if session == "@" {
		session = ""
	}
	w := WaitRecord{
		Request: HoldID(entry[2]), Session: session, Ticket: uint64(Int(f.Ticket)),
		State: map[string]WaitState{"w": Waiting, "o": Offered, "l": Lapsed, "k": Kept}[f.State],
		Since: Time(Int(f.Since)), Info: rawInfo(f.Info), Items: ParseItems(FieldsOf(f.Items)),
	}
	for _, id := range strings.Fields(f.Under) {
		w.Under = append(w.Under, HoldID(id))
	}
	w.Names = NamesOf(w.Items)
	l.Waits = append(l.Waits, w)
}

// Text returns the revocation as it is stored in a record.
func (a *Asked) Text() string {
	why, err := json.Marshal(a.Revocation)
	if err != nil {
		return "" // two strings can always be encoded
	}
	return string(a.Force) + string(why)
}

// ParseRevocation reads the text of a revocation. JSON has no control characters, so it fits into a
// record.
func ParseRevocation(text string) Revocation {
	var why Revocation
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&why); err != nil {
		return Revocation{Reason: text}
	}
	return why
}

// parsePermits reads p<used>:<limit>:<version>.
func parsePermits(owner string) PermitRecord {
	var numbers [3]int64
	for i, text := range strings.SplitN(owner[1:], ":", len(numbers)) {
		numbers[i] = Int(text)
	}
	return PermitRecord{PermitLimit{Permits: int(numbers[1]), Version: numbers[2]}, int(numbers[0])}
}

func rawInfo(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}
