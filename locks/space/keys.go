package space

import (
	"fmt"
	"regexp"
	"slices"
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
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = "{" + namespace + "}:" + key.name
	}
	return names
}

func (s *Space) key(name string) string {
	return s.keys[slices.IndexFunc(keys, func(key struct{ name, kind string }) bool { return key.name == name })]
}

// Channel returns the one channel that a session listens to.
func Channel(namespace string, session SessionID) string {
	return "{" + namespace + "}:to:" + string(session)
}

// Notice returns the message that the client of a session passes on to its program, on the channel
// of the session.
func Notice(text string) string { return "n\x1f" + text }
