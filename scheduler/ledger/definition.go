package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"lockstep/jobs"
	"lockstep/locks/space"
)

// nameOf returns the name under which Redis stores a definition: a hash of its text, with the
// signature. The text can be long, and very many runs have the same one.
func nameOf(definition string) string {
	sum := sha256.Sum256([]byte(definition))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// named returns a definition as the scripts take it: its name and its text.
func named(definition string) string { return nameOf(definition) + "\x1f" + definition }

// Encoded is a definition in the form for Redis. To encode and hash a definition takes a process
// longer than all else that it does to register it, so a caller with very many of them does that
// once for all calls. The job must not change.
type Encoded struct {
	Job  *jobs.Job
	Hash string // see [Hash]; "" until the definition was encoded

	text      []byte // as [jobs.Job.Definition] returns it; nil: not encoded, or forgotten
	fromRedis bool
}

// encode sets what is derived from the job.
func (e *Encoded) encode() error {
	text, fromRedis, err := e.Job.Definition()
	if err != nil {
		return fmt.Errorf("definition of job %s: %w", e.Job.Name, err)
	}
	e.text, e.fromRedis, e.Hash = text, fromRedis, hashText(jobs.Unsigned(text))
	return nil
}

// Forget releases the memory of the text. A call that needs the text later encodes the definition
// again.
func (e *Encoded) Forget() { e.text = nil }

// errMissing says that Redis does not have the definition of a run.
var errMissing = errors.New("its definition is missing")

// checkName returns an error unless a definition is the one that is stored under a name, which has
// an @ in front.
func checkName(name, definition string) error {
	switch {
	case definition == "":
		return errMissing
	case name != "@"+nameOf(definition):
		return fmt.Errorf("%w: another text is stored under its name", errMissing)
	}
	return nil
}

// textOf returns the definition that one of some marks names, or "".
func textOf(name string, marks []mark) string {
	for _, m := range marks {
		if m.text == name {
			return m.definition
		}
	}
	return ""
}

// definitionsOf returns the definitions that outstanding runs were made with, as Redis has them, in
// the order of the ids: "" for a run that is not outstanding, and no JSON for one whose definition
// is missing. It may return fewer of them, but at least one.
func (l *Ledger) definitionsOf(ctx context.Context, ids []jobs.RunID) ([]string, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = string(id)
	}
	r := space.Read(l.run(ctx, "definition", "", args...))
	var definitions []string
	for r.More() {
		definitions = append(definitions, r.Text())
	}
	if r.Err == nil && (len(definitions) == 0 || len(definitions) > len(ids)) {
		r.Err = fmt.Errorf("%w: %d definitions of %d runs", space.ErrReply, len(definitions), len(ids))
	}
	return definitions, r.Err
}

// Definition returns the definition that an outstanding run was made with, or [ErrUnknown].
func (l *Ledger) Definition(ctx context.Context, id jobs.RunID) (*jobs.Job, error) {
	definitions, err := l.definitionsOf(ctx, []jobs.RunID{id})
	if err != nil {
		return nil, fmt.Errorf("read definition of run %s: %w", id, err)
	}
	return readDefinition(id, definitions[0])
}

// readDefinition reads the definition of a run as Redis has it.
func readDefinition(id jobs.RunID, definition string) (*jobs.Job, error) {
	if definition == "" {
		return nil, fmt.Errorf("run %s: %w", id, ErrUnknown)
	}
	job, err := jobs.ReadJob(definition)
	if err != nil {
		return nil, fmt.Errorf("definition of run %s: %w: %w", id, ErrUnreadable, err)
	}
	return job, nil
}

// A Definition is the one that an outstanding run was made with, or the error of
// [Ledger.Definition] for that run.
type Definition struct {
	Job *jobs.Job
	Err error
}

// Definitions returns the definitions that outstanding runs were made with, in the order of the
// runs. Most runs share a definition with others, so they may share a Job.
func (l *Ledger) Definitions(ctx context.Context, ids []jobs.RunID) []Definition {
	all := make([]Definition, 0, len(ids))
	known := make(map[string]*jobs.Job)
	for len(all) < len(ids) {
		texts, err := l.definitionsOf(ctx, ids[len(all):])
		if err != nil {
			for _, id := range ids[len(all):] {
				all = append(all, Definition{Err: fmt.Errorf("read definition of run %s: %w", id, err)})
			}
		}
		for _, text := range texts {
			d := Definition{Job: known[text]}
			if d.Job == nil {
				if d.Job, d.Err = readDefinition(ids[len(all)], text); d.Err == nil {
					known[text] = d.Job
				}
			}
			all = append(all, d)
		}
	}
	return all
}
