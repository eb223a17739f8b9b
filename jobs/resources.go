package jobs

import (
	"encoding/json"
	"fmt"

	"lockstep/locks"
)

// Resources returns what an attempt at the given run must hold, sorted by name and without
// duplicates:
//
//   - "job:<name>" if the job has a schedule and its runs must not overlap, or one of Concurrency
//     permits of it if Concurrency is set;
//   - the keys of Lock, expanded with the run's args;
//   - always "run:<id>".
//
// All errors but one are [Permanent]: those of [ParseKey] and [Key.Expand], one for more than
// [MaxResources], and one for a resource that is requested in two modes. The exception is an
// [ErrUnknownKeys]: Lock has a key that this build does not know, so this build cannot determine
// all that the attempt must hold.
func (j *Job) Resources(id RunID, args json.RawMessage) ([]locks.Item, error) {
	if err := j.checkLockKeys(); err != nil {
		return nil, err
	}
	items := []locks.Item{{Name: RunResource(id), Mode: locks.ModeExclusive}}
	switch {
	case j.Concurrency > 0:
		items = append(items, locks.Item{Name: JobResource(j.Name), Mode: locks.ModeShared, N: j.Concurrency})
	case j.Scheduled() && j.Overlap != OverlapAllow:
		items = append(items, locks.Item{Name: JobResource(j.Name), Mode: locks.ModeExclusive})
	}
	for name, n := range j.Lock.Permits {
		items = append(items, locks.Item{Name: name, Mode: locks.ModePermits, N: n})
	}
	for _, item := range items {
		if err := locks.CheckName(item.Name); err != nil {
			return nil, Permanent(err)
		}
	}
	for mode, templates := range map[locks.Mode][]string{locks.ModeExclusive: j.Lock.Exclusive, locks.ModeShared: j.Lock.Shared} {
		for _, text := range templates {
			key, err := ParseKey(text)
			if err != nil {
				return nil, Permanent(err)
			}
			keys, err := key.Expand(args)
			if err != nil {
				return nil, err
			}
			for _, name := range keys {
				items = append(items, locks.Item{Name: name, Mode: mode})
			}
		}
	}
	items, err := locks.Bundle(items)
	switch {
	case err != nil:
		return nil, Permanent(fmt.Errorf("locks of job %s: %w", j.Name, err))
	case len(items) > MaxResources:
		return nil, Permanent(fmt.Errorf("locks of job %s: %d resources, at most %d can be held at once (the locks of the run and of the job count)",
			j.Name, len(items), MaxResources))
	}
	return items, nil
}
