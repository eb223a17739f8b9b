package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Item is a resource and the mode in which an attempt needs it, as the lock space writes them: "x<name>" for itself
// alone, "s<name>" shared, "p<n>:<name>" n permits of it.
type Item string

// Exclusive returns the item that takes a resource for itself alone.
func Exclusive(name string) Item { return Item("x" + name) }

// Name returns the resource's name.
func (i Item) Name() string {
	if i == "" {
		return ""
	}
	if i[0] == 'p' {
		_, name, _ := strings.Cut(string(i), ":")
		return name
	}
	return string(i[1:])
}

// Resources returns what an attempt at the given run must hold, with the modes: "job:<name>" if the job has a schedule and
// its runs may not overlap; the keys of Lock.Exclusive, read from the run's args; and always "run:<id>". They are sorted
// by name and without duplicates.
//
// All errors are [Permanent]: those of [ParseKey] and [Key.Expand], and one when there are more than [MaxResources].
func (j *Job) Resources(id RunID, args json.RawMessage) ([]Item, error) {
	names := []string{RunResource(id)}
	if j.Scheduled() && j.Overlap != OverlapAllow {
		names = append(names, JobResource(j.Name))
	}
	for _, name := range names {
		if err := validResource(name); err != nil {
			return nil, Permanent(err)
		}
	}
	if len(j.Lock.Exclusive) > 0 {
		value, err := decodeValue(args)
		if err != nil {
			return nil, Permanent(fmt.Errorf("locks of job %s: %w", j.Name, err))
		}
		for _, text := range j.Lock.Exclusive {
			key, err := ParseKey(text)
			if err != nil {
				return nil, Permanent(err)
			}
			keys, err := key.expand(value)
			if err != nil {
				return nil, err
			}
			names = append(names, keys...)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > MaxResources {
		return nil, Permanent(fmt.Errorf("locks of job %s: %d resources, at most %d can be held at once (the locks of the run and of the job count)",
			j.Name, len(names), MaxResources))
	}
	items := make([]Item, len(names))
	for i, name := range names {
		items[i] = Exclusive(name)
	}
	return items, nil
}

// validResource checks the name of a resource. The lock space has the same rule; here it lets the job's author be told
// before anything is asked of Redis.
func validResource(name string) error {
	switch {
	case name == "":
		return errors.New("the name of a resource is empty")
	case len(name) > 512:
		return fmt.Errorf("resource %.40q...: %d bytes, at most 512 are possible", name, len(name))
	case !utf8.ValidString(name):
		return fmt.Errorf("resource %q is not valid UTF-8", name)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("resource %q has a control character (%U)", name, r)
		}
	}
	return nil
}
