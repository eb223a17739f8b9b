package ledger

import (
	"time"

	"lockstep/locks/space"
)

// The pauses between attempts to make a call without a reply.
const (
	ResendFirst = 50 * time.Millisecond
	ResendMost  = time.Second
)

// Insist makes a call of the ledger until it is done, with pauses in between, or until one of stop
// is closed, of which there are two at most. It returns the error of the last call.
func Insist(call func() (done bool, err error), stop ...<-chan struct{}) error {
	return space.Insist(space.Backoff{First: ResendFirst, Most: ResendMost}, call, stop...)
}
