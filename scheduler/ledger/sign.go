package ledger

import (
	"bytes"
	"math"
	"time"

	"lockstep/jobs"
)

// Sign makes the ledger sign the definitions of this process when it writes them, and verify those
// that it reads before it hands them to a worker or writes them again. own returns the definition
// of a job that this process carries itself, or nil: a run made with exactly that one needs no
// signature, since this process would sign it as well. Nil keys change nothing. Call Sign before
// anything else.
func (l *Ledger) Sign(keys *jobs.Keys, own func(job string) *jobs.Job) {
	l.signing, l.own = keys, own
}

// SignKeys returns the keys that were given to [Ledger.Sign], or nil.
func (l *Ledger) SignKeys() *jobs.Keys { return l.signing }

// Trust returns nil when a definition from Redis may be executed: it is signed, or this process
// carries it itself, or this process has no key. Else the error is a [*jobs.SignatureError].
func (l *Ledger) Trust(job *jobs.Job) error {
	if l.signing == nil {
		return nil
	}
	text, fromRedis, err := job.Definition()
	if err != nil || !fromRedis {
		return err
	}
	return l.verify(job.Name, text)
}

// verify checks a definition as Redis has it.
func (l *Ledger) verify(job string, text []byte) error {
	wrong := l.signing.Verify(job, text)
	if wrong == nil || l.own == nil {
		return wrong
	}
	if own := l.own(job); own != nil {
		if mine, fromRedis, err := own.Definition(); err == nil && !fromRedis && bytes.Equal(mine, jobs.Unsigned(text)) {
			return nil
		}
	}
	return wrong
}

// write returns the text of a definition for Redis: signed here, or as it was read from Redis. A
// definition that was read and cannot be trusted gives an error that is [jobs.ErrSignature]: a
// signature of this process must not make it valid.
func (l *Ledger) write(job *jobs.Job) ([]byte, error) {
	text, _, err := l.encoded(&Encoded{Job: job})
	return text, err
}

// encoded is write for a definition that may be encoded already. It also returns the hash, which an
// [jobs.ErrSignature] does not affect.
func (l *Ledger) encoded(e *Encoded) (text []byte, hash string, err error) {
	if e.text == nil {
		e = &Encoded{Job: e.Job} // the caller wants to keep no text
		if err := e.encode(); err != nil {
			return nil, "", err
		}
	}
	job := e.Job.Name
	if !e.fromRedis {
		return l.signing.Sign(job, e.text), e.Hash, nil
	}
	if err := l.verify(job, e.text); err != nil {
		return nil, e.Hash, err
	}
	if l.signing.Verify(job, e.text) != nil { // it is this process's own
		return l.signing.Sign(job, jobs.Unsigned(e.text)), e.Hash, nil
	}
	return e.text, e.Hash, nil
}

// definition decodes the definition of a claimed run, and verifies it. key is its mark, or the text
// itself. The runs of a job carry the same definition again and again, and parsing it costs a
// worker more than the rest of a claim.
func (l *Ledger) definition(run jobs.RunID, key, text string) (*jobs.Job, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if job, ok := l.definitions[key]; ok && (l.signing == nil || job.Name == run.Job()) {
		return job, nil
	}
	if err := l.verify(run.Job(), []byte(text)); err != nil {
		return nil, err
	}
	job, err := jobs.ReadJob(text)
	if err != nil {
		return nil, err
	}
	const many = 1000 // more than a worker usually meets; beyond it the cache starts anew
	if len(l.definitions) >= many {
		clear(l.definitions)
	}
	l.definitions[key] = job
	return job, nil
}

// refusedJob replaces a definition that cannot be trusted: nothing of that one is used, not even
// the bounds of the history.
func refusedJob(run jobs.RunID) *jobs.Job {
	return &jobs.Job{Name: run.Job(), History: jobs.History{Runs: math.MaxInt32, For: 100 * 365 * 24 * time.Hour}}
}
