package space

import (
	"fmt"
	"strconv"
	"strings"
)

// Token is a fencing token: a number that the lock space draws anew for every grant and that only
// grows, even across expiry, an emptied Redis and failover. A system that guards an effect keeps
// the highest token seen and refuses a lower one. A token stays below 2^53. In JSON it is a decimal
// string, because many readers of JSON would round a number.
type Token uint64

// String returns the token in decimal.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// MarshalText writes the token in decimal.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what [Token.MarshalText] wrote.
func (t *Token) UnmarshalText(text []byte) error {
	token, err := ParseToken(string(text))
	if err != nil {
		return err
	}
	*t = token
	return nil
}

// ParseToken reads a token in decimal.
func ParseToken(text string) (Token, error) {
	n, err := strconv.ParseUint(text, 10, 53)
	if err != nil {
		return 0, fmt.Errorf("fencing token %q: want a decimal number below 2^53", text)
	}
	return Token(n), nil
}

// SessionID names one lease of one process incarnation, as "<name>.<8 random characters>". It is
// never used again once its session has ended. A worker's ID is that of its session.
type SessionID string

// HoldID names one attempt to acquire a bundle, as "<session>.<n>"; once granted, it names the
// hold. Every script is keyed by it, so sending one twice is harmless, and a release frees one
// grant, never a later one of the same name.
type HoldID string

// SessionOf returns the session that drew an ID.
func SessionOf(id HoldID) SessionID {
	return SessionID(id[:max(0, strings.LastIndexByte(string(id), '.'))])
}
