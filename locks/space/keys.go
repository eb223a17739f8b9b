package space

import (
	"fmt"
	"regexp"
	"sync"
)

var namespacePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
})

// CheckNamespace returns an [ErrInvalid] for an invalid name of a namespace.
func CheckNamespace(namespace string) error {
	if !namespacePattern().MatchString(namespace) {
		return fmt.Errorf("%w: namespace %q: use 1 to 64 letters, digits, - and _", ErrInvalid, namespace)
	}
	return nil
}

// KeysOf returns the keys in the order of KEYS. The namespace is the hash tag: a space lives in
// one slot.
func KeysOf(namespace string) []string {
	keys := []string{"exp", "own", "hold", "wait", "q", "idx", "meta", "seq"}
	for i, key := range keys {
		keys[i] = "{" + namespace + "}:" + key
	}
	return keys
}

// Channel returns the one channel that a session listens to.
func Channel(namespace string, session SessionID) string {
	return "{" + namespace + "}:to:" + string(session)
}
