package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/space"
)

// Children are the runs that were made from within a run.
type Children struct {
	First []jobs.RunID // the first 20 of them, in the order in which they were made
	All   int
}

// Children returns the runs that were made from within a run ([Request].Parent), and those that
// repeat its tick under a new key. Redis keeps them for the 10,000 runs that last made a first one.
func (l *Ledger) Children(ctx context.Context, record *Record) (Children, error) {
	text, err := l.rdb.HGet(ctx, l.prefix+childrenKey, string(record.ID)).Result()
	if errors.Is(err, redis.Nil) {
		return Children{}, nil
	}
	if err != nil {
		return Children{}, fmt.Errorf("read the children of run %s: %w", record.ID, l.space.Explain(err))
	}
	parts := strings.Split(text, "\x1f")
	if len(parts) < 2 {
		parts = append(parts, "")
	}
	r := space.Read([]any{parts[0], parts[1]}, nil)
	made, children := r.Time(), Children{All: int(r.Number())}
	if r.Err != nil {
		return Children{}, fmt.Errorf("read the children of run %s: %w", record.ID, r.Err)
	}
	if !made.Equal(record.Created) { // those of an earlier run with the same id
		return Children{}, nil
	}
	for _, id := range parts[2:] {
		children.First = append(children.First, jobs.RunID(id))
	}
	return children, nil
}
