package jobs

import (
	"encoding/json"

	"lockstep/locks"
)

// MaxResources is how many resources one attempt may hold.
const MaxResources = locks.MaxBundle

// Key is a lock key that reads the arguments of a run. Make one with [ParseKey].
type Key struct{ key *locks.Key }

// ParseKey reads a lock key: text with placeholders that are replaced by values from the JSON arguments of a run, as in
// "bill:{bill_ids[*]}". [locks.ParseKey] has the rules. The error says what is wrong and at which byte.
func ParseKey(text string) (*Key, error) {
	key, err := locks.ParseKey(text)
	if err != nil {
		return nil, err
	}
	return &Key{key}, nil
}

// String returns the text that was parsed.
func (k *Key) String() string { return k.key.String() }

// Expand returns the keys for the given arguments, as [locks.Key.Expand] does. All errors are [Permanent], since the same
// arguments will fail again, and a [*locks.KeyError].
func (k *Key) Expand(args json.RawMessage) ([]string, error) {
	keys, err := k.key.Expand(args)
	return keys, Permanent(err)
}
