package admin

import "lockstep/scheduler/ledger"

// The statuses of HTTP that a recorded request would have alone, also on the command line.
const (
	created = 201 // a new run
	existed = 200 // the run existed already
)

// Requested is the reply to one request of a list.
type Requested struct {
	// Status is that of the reply to the request alone: 201 for a new run, 200 for one that existed
	// already, 202 for one that a worker will record, or that of the error.
	Status int  `json:"status"`
	ID     Text `json:"id"`    // of the run; null with an error
	State  Text `json:"state"` // null with an error, and where it is not known any more
	Error  Text `json:"error"`
}

// NewRequested returns the shape of a reply. statusOf returns the status of an error.
func NewRequested(r ledger.Replied, statusOf func(error) int) Requested {
	switch {
	case r.Err != nil:
		return Requested{Status: statusOf(r.Err), Error: Text(r.Err.Error())}
	case r.Exists:
		return Requested{Status: existed, ID: Text(r.Run), State: Text(r.State)}
	}
	return Requested{Status: created, ID: Text(r.Run), State: Text(r.State)}
}
