package jobs

import (
	"encoding/json"

	"lockstep/locks"
	"lockstep/locks/rule"
)

// MaxResources limits how many resources one attempt holds.
const MaxResources = locks.MaxBundle

// Key is a lock key that reads the arguments of a run. Make one with [ParseKey].
type Key struct{ key *rule.Key }

// ParseKey parses a lock key: text with placeholders, such as "bill:{bill_ids[*]}", that values
// from the JSON arguments of a run replace. [rule.ParseKey] has the rules. The error describes the
// mistake and its byte position.
func ParseKey(text string) (*Key, error) {
	key, err := rule.ParseKey(text)
	if err != nil {
		return nil, err
	}
	return &Key{key}, nil
}

// String returns the text that was parsed.
func (k *Key) String() string { return k.key.String() }

// Fields returns the names of the args that the key reads, and of those that lead to them.
func (k *Key) Fields() []string { return k.key.Fields() }

// Expand returns the keys for the given arguments, as [rule.Key.Expand] does. Each error is a
// [*rule.KeyError] and [Permanent], because the same arguments would fail again.
func (k *Key) Expand(args json.RawMessage) ([]string, error) {
	keys, err := k.key.Expand(args)
	return keys, Permanent(err)
}
