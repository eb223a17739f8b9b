package configs

import (
	"fmt"
	"maps"
	"slices"

	"lockstep/jobs"
)

// Permit limits how many runs may use something at a time, over all workers.
type Permit struct {
	Limit       int
	Version     int64 // the highest version of any worker counts
	Description string
}

// PermitOrigin returns the place where permits are declared, or the zero Origin.
func (c *Config) PermitOrigin(name string) Origin { return c.declared[name] }

// declare adds the permits of a file. If two have the same name, the first is kept.
func (l *loader) declare(s *source) {
	for _, name := range slices.Sorted(maps.Keys(s.file.Permits)) {
		permit := s.file.Permits[name]
		if first, ok := l.permits[name]; ok {
			l.errorAt(s, permit.key, CodeDuplicatePermit, fmt.Sprintf("permits %q are already declared at %s",
				name, first.src.origin(first.key)), "keep one of them")
			continue
		}
		l.permits[name] = permit
	}
}

// buildPermits makes the permits of all files.
func (l *loader) buildPermits() map[string]Permit {
	built := make(map[string]Permit, len(l.permits))
	for name, f := range l.permits {
		if f.broken {
			continue
		}
		if _, limit := written(f.node, "limit"); limit == nil && !slices.Contains(f.likely, "limit") {
			l.errorAt(f.src, f.key, CodeMissingKey, fmt.Sprintf("permits %q have no limit", name), "write limit: NUMBER below it")
		}
		built[name] = Permit{
			Limit:       valueOr(f.Limit, 0),
			Version:     int64(valueOr(f.Version, 0)),
			Description: string(valueOr(f.Description, "")),
		}
	}
	return built
}

// lockPermits checks that the permits of a job are declared.
func (l *loader) lockPermits(f *jobFile, job *jobs.Job) {
	for _, name := range slices.Sorted(maps.Keys(job.Lock.Permits)) {
		n, permit := job.Lock.Permits[name], l.permits[name]
		switch {
		case permit == nil:
			key, _ := f.find("lock", "permits", name)
			hint := fmt.Sprintf("write permits: {%s: {limit: %d}} at the top level", name, n)
			if likely := nearest(name, slices.Sorted(maps.Keys(l.permits))); likely != "" {
				hint = didYouMean(likely)
			}
			l.errorAt(f.src, key, CodeUnknownPermit, fmt.Sprintf("job %q takes permits of %s, which are not declared", f.name, quote(name)), hint)
		case permit.Limit != nil && n > *permit.Limit:
			_, value := f.find("lock", "permits", name)
			l.errorAt(f.src, value, CodePermits, fmt.Sprintf("job %q takes %d permits of %s, which has %d at %s", f.name, n, quote(name),
				*permit.Limit, permit.src.origin(permit.key)), "it could never run")
		}
	}
}
