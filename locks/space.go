package locks

import (
	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// A Space is one lock space, seen without a session: Read lists holds and waits, Sessions the live
// sessions. See package space, which also has what other packages need for scripts of their own.
type Space struct {
	*space.Space
	rdb  redis.UniversalClient
	keys []string
}

// NewSpace returns the space of a namespace: 1 to 64 letters, digits, - and _. It sends commands
// through rdb, which the caller keeps and closes. It dials nothing.
func NewSpace(rdb redis.UniversalClient, namespace string) (*Space, error) {
	if err := space.CheckNamespace(namespace); err != nil {
		return nil, err
	}
	return spaceOn(rdb, space.KeysOf(namespace)), nil
}

func spaceOn(rdb redis.UniversalClient, keys []string) *Space {
	return &Space{space.On(rdb, keys), rdb, keys}
}

// Package space describes these types.
type (
	// A Token is a fencing token.
	Token = space.Token
	// A SessionID names one lease of one process incarnation.
	SessionID = space.SessionID
	// A HoldID names one request, and then its hold.
	HoldID = space.HoldID

	// An Item is one resource of a bundle, with how it is wanted or held.
	Item = space.Item
	// A Mode is how a bundle holds one of its resources.
	Mode = space.Mode

	// A Listing is the content of a space.
	Listing = space.Listing
	// A HoldRecord is a granted bundle.
	HoldRecord = space.HoldRecord
	// A WaitRecord is a queued request.
	WaitRecord = space.WaitRecord
	// A SessionRecord is one session.
	SessionRecord = space.SessionRecord
	// A LockRecord is one resource with its holders.
	LockRecord = space.LockRecord
	// A PermitLimit is a declared number of permits.
	PermitLimit = space.PermitLimit

	// Keep bounds what a space keeps of holds and waits that have ended.
	Keep = space.Keep

	// A Revocation names the actor that wants a lock back, and its reason.
	Revocation = space.Revocation
	// A Force is how forcefully a lock is revoked.
	Force = space.Force
)

// The modes of an [Item].
const (
	ModeExclusive = space.ModeExclusive // alone
	ModeShared    = space.ModeShared    // beside others that share it
	ModePermits   = space.ModePermits   // a number of permits, of a declared limit
)

const (
	// Ask asks the holder, which learns of it through [Hold.Asked] and decides by itself.
	Ask = space.Ask
	// Take ends the context of the hold with the cause [ErrRevoked]. The lock passes on when its
	// holder has released it, or when the holder's session has ended.
	Take = space.Take
	// Seize frees the lock at once, and then ends the context of the hold. Until the holder has
	// received that, two holders may work. Guards refuse the token of the seized hold once they
	// have seen a newer one. During a grace period, before the holder has re-asserted the hold,
	// Seize acts like Take, since nothing passes on.
	Seize = space.Seize
)

// MaxBundle is how many resources one bundle may have.
const MaxBundle = space.MaxBundle

var (
	// ErrInvalid means that a request can never be granted, whatever others do: a bad name, no
	// resource or too many, more permits than are declared, a mode that the resource does not have.
	// Nothing has changed.
	ErrInvalid = space.ErrInvalid

	// ErrFormat means that this build must not read or write what a namespace stores, because it
	// does not know the layout. The error that carries it is a [*space.FormatError]. It is final:
	// trying again does not help.
	ErrFormat = space.ErrFormat
)

// ParseToken reads a token in decimal.
func ParseToken(text string) (Token, error) { return space.ParseToken(text) }

// Bundle sorts items by name and drops duplicates, in place. A resource that is wanted in two modes
// is an error.
func Bundle(items []Item) ([]Item, error) { return space.Bundle(items) }

// CheckName returns an [ErrInvalid] for an invalid name of a resource. A valid name has 1 to 512
// bytes of UTF-8 without control characters. Every call that takes a name checks it; use CheckName
// to check it earlier.
func CheckName(name string) error { return space.CheckName(name) }
