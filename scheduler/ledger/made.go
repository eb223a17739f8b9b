package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
)

// ErrNotKept means that Redis does not keep the definition that a finished run was made with (any
// more): see "Definitions of finished runs" in the documentation of the package.
var ErrNotKept = errors.New("the definition of the run is not kept")

// madeLength is how much of the name of its definition a final record has. The scripts know it.
const madeLength = 6

// Made returns the definition that a run was made with: of an outstanding run as
// [Ledger.Definition] does, of a finished one as long as it is kept. Otherwise the error is
// [ErrNotKept].
func (l *Ledger) Made(ctx context.Context, record *Record) (*jobs.Job, error) {
	if record.Finished.IsZero() || record.Parked {
		return l.Definition(ctx, record.ID)
	}
	text, err := l.madeText(ctx, record)
	if err != nil {
		return nil, fmt.Errorf("read the definition of the finished run %s: %w", record.ID, err)
	}
	return readDefinition(record.ID, text)
}

// madeText returns the definition of a finished run as Redis has it.
func (l *Ledger) madeText(ctx context.Context, record *Record) (string, error) {
	if record.Made == "" {
		return "", ErrNotKept
	}
	var kept *redis.StringSliceCmd
	var active *redis.StringCmd
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		kept, active = pipe.ZRange(ctx, l.prefix+"made:"+record.Job, 0, -1), pipe.HGet(ctx, l.prefix+"def", record.Job)
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", err
	}
	names := slices.DeleteFunc(kept.Val(), func(name string) bool { return !strings.HasPrefix(name, record.Made) })
	if len(names) > 1 {
		return "", ErrNotKept
	}
	for _, name := range names {
		text, err := l.rdb.HGet(ctx, l.prefix+"defs", "@"+name).Result()
		switch {
		case err == nil && nameOf(text) == name:
			return text, nil
		case err != nil && !errors.Is(err, redis.Nil):
			return "", l.space.Explain(err)
		}
	}
	// An older build has removed the text with the last outstanding run that had it.
	if text := active.Val(); strings.HasPrefix(nameOf(text), record.Made) {
		return text, nil
	}
	return "", ErrNotKept
}

// TidyHistories drops the definitions that no finished run has any more, of all jobs. A new
// definition of a job drops older ones, too, so this matters for jobs that get none, and for those
// that an older build has forgotten. size is a recent result of [Ledger.HistorySize], which also
// explains pause.
func (l *Ledger) TidyHistories(ctx context.Context, size *HistorySize, pause func(context.Context) error) error {
	forgotten, err := l.forgottenMade(ctx, pause)
	if err != nil {
		return fmt.Errorf("read which forgotten jobs keep definitions: %w", err)
	}
	for some := range slices.Chunk(append(forgotten, size.stale...), purgeCalls) {
		steps := make([]step, len(some))
		for i, name := range some {
			steps[i] = step{name, []any{0, 0}} // it removes no run
		}
		for i, call := range l.runAll(ctx, "purge", steps) {
			if r := call.Read(); r.Err != nil {
				err = errors.Join(err, fmt.Errorf("tidy history of %s: %w", some[i], r.Err))
			}
		}
		if paused := pause(ctx); paused != nil {
			return errors.Join(err, paused)
		}
	}
	return err
}

// forgottenMade returns the jobs without a cursor that keep definitions. A build that knows no such
// definitions has forgotten the jobs; they remain in rev for a week.
func (l *Ledger) forgottenMade(ctx context.Context, pause func(context.Context) error) (forgotten []string, err error) {
	for at := int64(0); ; at += sizePage {
		some, err := l.rdb.ZRange(ctx, l.prefix+"rev", at, at+sizePage-1).Result()
		if err != nil {
			return nil, l.space.Explain(err)
		}
		known, made := make([]*redis.BoolCmd, len(some)), make([]*redis.IntCmd, len(some))
		err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
			for i, name := range some {
				known[i], made[i] = pipe.HExists(ctx, l.prefix+"cursor", name), pipe.Exists(ctx, l.prefix+"made:"+name)
			}
		})
		if err != nil {
			return nil, err
		}
		for i, name := range some {
			if !known[i].Val() && made[i].Val() > 0 {
				forgotten = append(forgotten, name)
			}
		}
		if err := pause(ctx); err != nil || len(some) < sizePage {
			return forgotten, err
		}
	}
}
