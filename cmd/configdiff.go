package cmd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs"
)

// change is how a config would change a job, or the permits of one name.
type change struct {
	Job     string           `json:"job,omitempty"`
	Permits string           `json:"permits,omitempty"`
	Change  string           `json:"change"`         // added, removed or changed
	Keys    []configs.Change `json:"keys"`           // if it is changed
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
		paths := configs.Find(t.configPaths, nil)
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
		changes := append(permits, compareJobs(before.Jobs, config.Jobs)...)
		if *output != text {
			return t.encode(*output, changes)
		}
		return t.printChanges(changes)
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

// compare lists the changes from one set of definitions to another, by name. start begins the
// change of a name, and keys lists what differs between two definitions.
func compare[T any](before, after map[string]T, start func(name string) change, keys func(was, is T) []configs.Change) []change {
	changes := []change{}
	names := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		was, old := before[name]
		is, current := after[name]
		c := start(name)
		c.Keys = []configs.Change{}
		switch {
		case !old:
			c.Change = "added"
		case !current:
			c.Change = "removed"
		default:
			c.Change, c.Keys = "changed", keys(was, is)
			if len(c.Keys) == 0 {
				continue
			}
		}
		changes = append(changes, c)
	}
	return changes
}

func compareJobs(before, after []*jobs.Job) []change {
	byName := func(list []*jobs.Job) map[string]*jobs.Job {
		named := make(map[string]*jobs.Job, len(list))
		for _, job := range list {
			named[job.Name] = job
		}
		return named
	}
	return compare(byName(before), byName(after), func(name string) change { return change{Job: name} }, configs.Changes)
}

func comparePermits(before, after map[string]configs.Permit) []change {
	return compare(before, after, func(name string) change { return change{Permits: name} }, func(was, is configs.Permit) (keys []configs.Change) {
		note := func(key string, was, is any) {
			if was != is {
				keys = append(keys, configs.Change{Key: key, Old: was, New: is})
			}
		}
		note("limit", was.Limit, is.Limit)
		note("version", was.Version, is.Version)
		note("description", unlessEmpty(was.Description), unlessEmpty(is.Description))
		return keys
	})
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

func (t *tool) printChanges(changes []change) error {
	if len(changes) == 0 {
		return t.write("no changes\n")
	}
	shown := func(value any) string {
		if value == nil {
			return "(none)"
		}
		return oneLine(inline(value))
	}
	var b strings.Builder
	for _, c := range changes {
		sign := map[string]string{"added": "+", "removed": "-", "changed": "~"}[c.Change]
		fmt.Fprintf(&b, "%s %s\n", sign, cmp.Or(c.Job, "permits "+c.Permits))
		for _, key := range c.Keys {
			fmt.Fprintf(&b, "    %s: %s -> %s\n", key.Key, shown(key.Old), shown(key.New))
		}
		if c.Note != "" {
			fmt.Fprintf(&b, "    %s\n", c.Note)
		}
	}
	return t.write(b.String())
}

// digest is a short name for a set of definitions: workers with the same digest have the same jobs.
func digest(definitions []*jobs.Job) string {
	text, err := json.Marshal(definitions)
	if err != nil {
		panic("cmd: a definition is plain data: " + err.Error())
	}
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:3])
}
