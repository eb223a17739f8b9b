package jobs

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// A definition is stored in Redis with every run it makes, and workers run what it says. With [Keys], the process that
// writes a definition signs it, and a worker refuses one whose signature is missing or wrong, so a client that can write
// to Redis but has no key cannot have a command of its own run.
//
// The signature is HMAC-SHA-256 over the namespace, the job's name and the exact bytes of the definition, each with its
// length in front. It is stored as the last member of the definition's JSON, so builds that know no signatures ignore it:
//
//	{"name":"backup", ... ,"signature":"<64 hex digits>"}
//
// The namespace comes from each process's own settings, so a definition signed for one namespace is worth nothing in
// another. The random id of the lock space is left out on purpose. It lives in the Redis that an attacker writes to, so it
// would add no protection; and it changes when Redis is emptied, which would make worthless what workers re-assert then.
// Two installations with the same namespace, each on a Redis of its own, need different keys.
//
// What a signature does not cover: a run's arguments, its queue and its state. A client that can write to Redis can still
// ask for any run of any job that was ever signed with a key in use, with any arguments, and can delete or change records.
// Arguments are data: no ${...} in them is replaced, and a command gets them in LOCKSTEP_ARGS.

// LeastKey is how long a key must be, in bytes. openssl rand -hex 32 makes a good one, of 64 characters.
const LeastKey = 32

// ErrSignature says that a definition cannot be trusted: see [SignatureError].
var ErrSignature = errors.New("the definition cannot be trusted")

// SignatureError is an [ErrSignature] that names the job and the fault.
type SignatureError struct {
	Job     string
	Missing bool // it has no signature; else its signature is wrong
}

func (e *SignatureError) Error() string {
	if e.Missing {
		return fmt.Sprintf("the definition of job %s is not signed: it was written without the key (redis.sign_key_file)", e.Job)
	}
	return fmt.Sprintf("the signature of the definition of job %s is wrong: it was changed, or signed with another key or for another namespace "+
		"(redis.sign_key_file)", e.Job)
}

// Kind names the fault in one word: unsigned or wrong.
func (e *SignatureError) Kind() string {
	if e.Missing {
		return "unsigned"
	}
	return "wrong"
}

// Is makes it an [ErrSignature].
func (e *SignatureError) Is(target error) bool { return target == ErrSignature }

// Keys sign and verify definitions for one namespace. Nil Keys sign nothing and accept everything. They are safe for
// concurrent use.
type Keys struct {
	namespace string
	keys      [][]byte
}

// NewKeys returns the keys of a namespace. The first one signs, all verify: two are for the time in which one replaces the
// other. No keys at all give nil Keys.
func NewKeys(namespace string, keys ...[]byte) (*Keys, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	for i, key := range keys {
		if len(key) < LeastKey {
			return nil, fmt.Errorf("key %d has %d bytes: at least %d are needed; make one by: openssl rand -hex 32", i+1, len(key), LeastKey)
		}
	}
	return &Keys{namespace, keys}, nil
}

// ID names the key that signs, without telling it; "" for nil Keys.
func (k *Keys) ID() string {
	if k == nil {
		return ""
	}
	return hex.EncodeToString(sum(k.keys[0], "lockstep key id"))[:8]
}

// Count returns how many keys verify.
func (k *Keys) Count() int {
	if k == nil {
		return 0
	}
	return len(k.keys)
}

const (
	signatureMember = `,"signature":"`
	signatureEnd    = `"}`
	signatureSize   = len(signatureMember) + 2*sha256.Size + len(signatureEnd)
)

// Sign returns the definition of a job, a JSON object, with its signature.
func (k *Keys) Sign(job string, definition []byte) []byte {
	if k == nil {
		return definition
	}
	mac := sum(k.keys[0], "lockstep definition 1", k.namespace, job, string(definition))
	signed := make([]byte, 0, len(definition)-1+signatureSize)
	signed = append(signed, definition[:len(definition)-1]...)
	signed = append(signed, signatureMember...)
	signed = hex.AppendEncode(signed, mac)
	return append(signed, signatureEnd...)
}

// Verify checks the signature in the definition of a job. The error is a [*SignatureError].
func (k *Keys) Verify(job string, signed []byte) error {
	if k == nil {
		return nil
	}
	definition, signature := splitSignature(signed)
	if signature == nil {
		return &SignatureError{Job: job, Missing: true}
	}
	for _, key := range k.keys {
		if hmac.Equal(signature, sum(key, "lockstep definition 1", k.namespace, job, string(definition))) {
			return nil
		}
	}
	return &SignatureError{Job: job}
}

// Unsigned returns a definition without its signature, if it has one.
func Unsigned(definition []byte) []byte {
	definition, _ = splitSignature(definition)
	return definition
}

// splitSignature parts a definition from its signature, which is nil when there is none.
func splitSignature(signed []byte) (definition, signature []byte) {
	at := len(signed) - signatureSize
	if at < 1 || !bytes.HasPrefix(signed[at:], []byte(signatureMember)) || !bytes.HasSuffix(signed, []byte(signatureEnd)) {
		return signed, nil
	}
	signature = make([]byte, sha256.Size)
	if _, err := hex.Decode(signature, signed[at+len(signatureMember):len(signed)-len(signatureEnd)]); err != nil {
		return signed, nil
	}
	return append(bytes.Clone(signed[:at]), '}'), signature
}

// sum is the HMAC of texts, each with its length in front: no two lists of texts give the same bytes.
func sum(key []byte, texts ...string) []byte {
	mac := hmac.New(sha256.New, key)
	for _, text := range texts {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		mac.Write(length[:])
		mac.Write([]byte(text))
	}
	return mac.Sum(nil)
}
