package cmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs"
)

// jobChange is how a config would change one job.
type jobChange struct {
	Job    string           `json:"job"`
	Change string           `json:"change"` // added, removed or changed
	Keys   []configs.Change `json:"keys"`   // of a changed job
}

// permitChange is how a config would change permits.
type permitChange struct {
	Permits string           `json:"permits"`
	Change  string           `json:"change"` // as in jobChange
	Keys    []configs.Change `json:"keys"`
	Note    string           `json:"note,omitempty"` // why the change would not take effect
}

func (t *tool) configDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [OLD]",
		Short: "Show what the config would change",
		Long: `Show which permits and jobs the config adds, removes and changes, and in which keys, compared with what the workers
have registered in Redis, or with the config in OLD, a file or folder (then Redis is not contacted). Secrets are
hidden, but a changed secret is listed. Jobs that workers with other files have registered show as removed. Permits
that the config does not have are not looked up in Redis. If a limit would not change, the reason is shown.`,
		Example: `  lockstep config diff
  lockstep config diff -c new/lockstep.yaml old/lockstep.yaml`,
		Args: atMostOneArg("an OLD config"),
	}
	output := outputFlag(cmd, text, asJSON, asYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		paths := configs.Find(t.flags.config, nil)
		if len(paths) == 0 {
			return refuse("no config: name a file with -c, set LOCKSTEP_CONFIG, or write ./lockstep.yaml")
		}
		config, err := t.told(readConfig(t.loadOptions(cmd, paths)))
		if err != nil {
			return err
		}
		var before *configs.Config
		if len(args) > 0 {
			before, err = t.told(readConfig(t.loadOptions(cmd, args)))
		} else {
			before, err = t.registered(cmd, config)
		}
		if err != nil {
			return err
		}
		permits := comparePermits(before.Permits, config.Permits)
		if len(args) == 0 {
			for i := range permits {
				name := permits[i].Permits
				permits[i].Note = notTaken(name, before.Permits[name], config.Permits[name])
			}
		}
		changes := compareJobs(before.Jobs, config.Jobs)
		if *output != text {
			list := make([]any, 0, len(permits)+len(changes))
			for _, change := range permits {
				list = append(list, change)
			}
			for _, change := range changes {
				list = append(list, change)
			}
			return t.encode(*output, list)
		}
		return t.printChanges(permits, changes)
	}
	return cmd
}

// registered returns what workers have registered: all jobs, and those permits that the config also
// has.
func (t *tool) registered(cmd *cobra.Command, config *configs.Config) (*configs.Config, error) {
	before := &configs.Config{Permits: make(map[string]configs.Permit)}
	err := t.reads(func(ctx context.Context, conn *connection, _ []string) error {
		records, err := conn.ledger.Jobs(ctx)
		if err != nil {
			return err
		}
		for _, record := range records {
			before.Jobs = append(before.Jobs, record.Job)
		}
		permits, err := conn.ledger.Space().Permits(ctx, slices.Collect(maps.Keys(config.Permits))...)
		// Redis does not store descriptions: take the config's, so that they do not differ.
		for name, p := range permits {
			before.Permits[name] = configs.Permit{Limit: p.Permits, Version: p.Version, Description: config.Permits[name].Description}
		}
		return err
	})(cmd, nil)
	return before, err
}

// comparePermits lists the changes from one set of permits to another, by name.
func comparePermits(before, after map[string]configs.Permit) (changes []permitChange) {
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, is := before[name], after[name]
		change := permitChange{Permits: name, Change: "changed", Keys: []configs.Change{}}
		switch {
		case was == configs.Permit{}: // no permits have a limit of 0
			change.Change = "added"
		case is == configs.Permit{}:
			change.Change = "removed"
		case was == is:
			continue
		default:
			if was.Limit != is.Limit {
				change.Keys = append(change.Keys, configs.Change{Key: "limit", Old: was.Limit, New: is.Limit})
			}
			if was.Version != is.Version {
				change.Keys = append(change.Keys, configs.Change{Key: "version", Old: was.Version, New: is.Version})
			}
			if was.Description != is.Description {
				change.Keys = append(change.Keys, configs.Change{Key: "description", Old: unlessEmpty(was.Description), New: unlessEmpty(is.Description)})
			}
		}
		changes = append(changes, change)
	}
	return changes
}

// unlessEmpty returns nil for an empty string.
func unlessEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// notTaken explains why a limit would not become what the config says, or returns "".
func notTaken(name string, declared, config configs.Permit) string {
	switch {
	case declared.Limit == config.Limit || declared.Limit == 0 || config.Version > declared.Version:
		return ""
	case config.Version < declared.Version:
		return fmt.Sprintf("it stays %d: a worker has declared version %d, which is newer", declared.Limit, declared.Version)
	}
	return fmt.Sprintf("workers would refuse this config: raise permits.%s.version above %d to change the limit", name, declared.Version)
}

// compareJobs lists the changes from one set of jobs to another, by name.
func compareJobs(before, after []*jobs.Job) []jobChange {
	old := make(map[string]*jobs.Job, len(before))
	for _, job := range before {
		old[job.Name] = job
	}
	changes := []jobChange{}
	for _, job := range after {
		was, there := old[job.Name]
		delete(old, job.Name)
		if !there {
			changes = append(changes, jobChange{job.Name, "added", []configs.Change{}})
			continue
		}
		if keys := configs.Changes(was, job); len(keys) > 0 {
			changes = append(changes, jobChange{job.Name, "changed", keys})
		}
	}
	for name := range old {
		changes = append(changes, jobChange{name, "removed", []configs.Change{}})
	}
	slices.SortFunc(changes, func(a, b jobChange) int { return strings.Compare(a.Job, b.Job) })
	return changes
}

func (t *tool) printChanges(permits []permitChange, changes []jobChange) error {
	if len(permits)+len(changes) == 0 {
		return t.write("no changes\n")
	}
	var b strings.Builder
	one := func(name, kind string, keys []configs.Change) {
		sign := map[string]string{"added": "+", "removed": "-", "changed": "~"}[kind]
		fmt.Fprintf(&b, "%s %s\n", sign, name)
		for _, key := range keys {
			was, is := inline(key.Old), inline(key.New)
			if key.Old == nil {
				was = "(none)"
			}
			if key.New == nil {
				is = "(none)"
			}
			fmt.Fprintf(&b, "    %s: %s -> %s\n", key.Key, oneLine(was), oneLine(is))
		}
	}
	for _, change := range permits {
		one("permits "+change.Permits, change.Change, change.Keys)
		if change.Note != "" {
			fmt.Fprintf(&b, "    %s\n", change.Note)
		}
	}
	for _, change := range changes {
		one(change.Job, change.Change, change.Keys)
	}
	return t.write(b.String())
}
