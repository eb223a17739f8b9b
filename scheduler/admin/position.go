package admin

import (
	"cmp"
	"encoding/json"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// position is where a run is in a list of runs. It needs no other run, so a page can begin
// after a run that has left the list.
type position struct {
	// of an outstanding run: the index that the list follows, and the position in it
	Index ledger.Index `json:"x,omitempty"`
	Open  string       `json:"p,omitempty"`

	Final bool       `json:"f,omitempty"` // of a finished run: its end (ms) and its id
	At    int64      `json:"t,omitempty"`
	ID    jobs.RunID `json:"i,omitempty"`
}

func endedPosition(entry ledger.EndedEntry) position {
	return position{Final: true, At: entry.At.UnixMilli(), ID: entry.Run}
}

// compare orders finished runs as the list does: the last one first, and within one millisecond,
// the last id first.
func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(q.At, p.At), cmp.Compare(q.ID, p.ID))
}

// cursor encodes a position as the text of a cursor.
func (p position) cursor() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic("admin: a position is plain data: " + err.Error())
	}
	return string(text)
}

// readPosition decodes the text of a cursor; "" is no position.
func readPosition(text string) (*position, error) {
	if text == "" {
		return nil, nil
	}
	p := new(position)
	if json.Unmarshal([]byte(text), p) != nil || p.Final == (p.Index != "") {
		return nil, ErrCursor
	}
	return p, nil
}
