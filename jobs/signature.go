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

// A definition is stored in Redis with every run that it makes, and workers do what it says. With
// [Keys], the process that writes a definition signs it, and a worker refuses a definition with a
// missing or wrong signature. A client that can write to Redis but has no key therefore cannot make
// a worker run a command of its own.
//
// The signature is HMAC-SHA-256 over the namespace, the job's name and the exact bytes of the
// definition, each preceded by its length. It is the last member of the definition's JSON, so
// builds without signatures ignore it:
//
//	{"name":"backup", ... ,"signature":"<64 hex digits>"}
//
// The namespace comes from each process's own settings, so a definition that was signed for one
// namespace is invalid in another. The random ID of the lock space is left out on purpose. It is
// stored in the Redis that an attacker writes to, so it would add no protection. It also changes
// when Redis is emptied, and then the definitions that workers re-assert would become invalid. Two
// installations with the same namespace, each with its own Redis, need different keys.
//
// The signature does not cover a run's arguments, queue and state. A client that can write to Redis
// can still request any run of any job that was ever signed with a key in use, with any arguments,
// and can delete or change records. Arguments are data: no ${...} in them is replaced, and a
// command receives them in LOCKSTEP_ARGS.

// LeastKey is the minimum length of a key in bytes. openssl rand -hex 32 makes a good key of 64
// characters.
const LeastKey = 32

// ErrSignature says that a definition cannot be trusted. See [SignatureError].
var ErrSignature = errors.New("the definition cannot be trusted")

// SignatureError is an [ErrSignature] that names the job and the fault.
type SignatureError struct {
	Job     string
	Missing bool // there is no signature; otherwise it is wrong
}

func (e *SignatureError) Error() string {
	if e.Missing {
		return fmt.Sprintf("the definition of job %s is not signed: it was written without the key (redis.sign_key_file)", e.Job)
	}
	return fmt.Sprintf("the signature of the definition of job %s is wrong: it was changed, or signed with another key or for another namespace "+
		"(redis.sign_key_file)", e.Job)
}

// Kind returns the fault in one word: unsigned or wrong.
func (e *SignatureError) Kind() string {
	if e.Missing {
		return "unsigned"
	}
	return "wrong"
}

// Is makes the error match [ErrSignature].
func (e *SignatureError) Is(target error) bool { return target == ErrSignature }

// Keys sign and verify definitions for one namespace. Nil Keys sign nothing and accept everything.
// Keys are safe for concurrent use.
type Keys struct {
	namespace string
	keys      [][]byte
}

// NewKeys returns the keys of a namespace. The first key signs, and all keys verify: configure two
// while one replaces the other. Without keys it returns nil.
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

// ID returns an identifier of the key that signs, without revealing the key. It is "" for nil Keys.
func (k *Keys) ID() string {
	if k == nil {
		return ""
	}
	return hex.EncodeToString(sum(k.keys[0], "lockstep key id"))[:8]
}

// Count returns the number of keys that verify.
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

// splitSignature separates a definition from its signature, which is nil if there is none.
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

// sum returns the HMAC of texts. Each text is preceded by its length, so no two lists of texts give
// the same bytes.
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
