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
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	limit := max(2, len(name)/3)
	for _, k := range known {
		distance := levenshtein.ComputeDistance(name, k)
		if strings.HasPrefix(k, name) && name != "" {
			distance = min(distance, limit)
		}
		if distance <= limit {
			found = append(found, candidate{k, distance})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	found = slices.CompactFunc(found, func(a, b candidate) bool { return a.name == b.name })
	var likely []string
	for _, c := range found[:min(3, len(found))] {
		likely = append(likely, c.name)
	}
	return likely
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
