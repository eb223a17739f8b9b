package cmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"lockstep/scheduler/ledger"
)

// unknown returns an error for an unknown name. It suggests similar ones.
func unknown(kind, name string, known []string) error {
	likely := near(name, known)
	switch {
	case len(likely) > 0:
		return fmt.Errorf("no %s %q; did you mean %s?", kind, name, strings.Join(likely, " or "))
	case len(known) == 0:
		return fmt.Errorf("no %s %q: there are none yet", kind, name)
	}
	return fmt.Errorf("no %s %q (see: lockstep %[1]s ls)", kind, name)
}

// near returns up to three names that resemble a mistyped one, the most similar first.
func near(name string, known []string) []string {
	limit := max(2, len(name)/3)
	distance := func(k string) int {
		d := levenshtein.ComputeDistance(name, k)
		if strings.HasPrefix(k, name) && name != "" {
			d = min(d, limit)
		}
		return d
	}
	likely := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return distance(k) > limit })
	slices.Sort(likely)
	likely = slices.Compact(likely)
	slices.SortStableFunc(likely, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	return likely[:min(3, len(likely))]
}

// jobNames returns the names of all jobs that workers have registered.
func (c *connection) jobNames(ctx context.Context) ([]string, error) {
	records, err := c.ledger.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	return namesOf(records, func(r ledger.JobRecord) string { return r.Job.Name }), nil
}

func namesOf[T any](items []T, name func(T) string) []string {
	list := make([]string, len(items))
	for i, item := range items {
		list[i] = name(item)
	}
	return list
}
