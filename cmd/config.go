package cmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

func (t *tool) configCommand() *cobra.Command {
	return group("config", "Inspect the config, and make workers reload it",
		"Show the values of a config with their origins, compare it, reload it, or import one from elsewhere.",
		t.configShowCommand(), t.configSchemaCommand(), t.configDiffCommand(), t.configReloadCommand(), t.configImportCommand())
}

// loadOptions returns options that say where a command's config comes from.
func (t *tool) loadOptions(cmd *cobra.Command, paths []string) configs.Options {
	return configs.Options{Paths: paths, Flags: cmd.Flags(), FlagKeys: flagKeys}
}

// readConfig calls [configs.Load] with a relaxed garbage collector. While a config is read, the
// heap only grows, and at each doubling the collector would scan nearly all of it again: for very
// many jobs, that is a third of the time.
func readConfig(options configs.Options) (*configs.Config, error) {
	const percent = 400
	// keep what $GOGC set
	if before := debug.SetGCPercent(percent); before < 0 || before > percent {
		debug.SetGCPercent(before)
	} else {
		defer debug.SetGCPercent(before)
	}
	return configs.Load(options)
}

// told prints the problems of a config that cannot be used, and returns the error that ends the
// command.
func (t *tool) told(config *configs.Config, err error) (*configs.Config, error) {
	if problems, ok := errors.AsType[configs.Problems](err); ok {
		fmt.Fprintln(t.stderr, problems.Error())
		return nil, exit(exitConfig, nil)
	}
	return config, err
}

// shownValue is one line of `config show`.
type shownValue struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
	From  string `json:"from"` // file:line:column, a variable, a flag, or "default"
}

func (t *tool) configShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [JOB]",
		Short: "Show settings and permits, or a job, and where each value comes from",
		Long: `Show all settings as a worker would have them, and the declared permits, each with the file, variable or flag it
comes from; or, for a JOB, all its keys, including defaults. Passwords and other secrets are hidden; ${...} in a job
is shown as written.`,
		Example: `  lockstep config show
  lockstep config show nightly-backup -o json`,
		Args: atMostOneArg("a JOB"),
	}
	output := outputFlag(cmd, tables, asJSON, asYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options := t.loadOptions(cmd, configs.Find(t.configPaths, nil))
		options.Origins = true
		config, err := readConfig(options)
		if problems, ok := errors.AsType[configs.Problems](err); ok && len(args) == 0 {
			// The settings may still be valid, and a user looking for a mistake needs to see
			// them.
			options.SettingsOnly = true
			fmt.Fprintf(t.stderr, "lockstep: permits and jobs cannot be used: %s (see: lockstep check)\n", problems.Summary())
			config, err = readConfig(options)
		}
		if config, err = t.told(config, err); err != nil {
			return err
		}
		for _, p := range config.Warnings.List {
			if p.Variable != "" { // it explains why a value is not what the user set
				fmt.Fprintln(t.stderr, p)
			}
		}
		values := append(config.Values(), config.PermitValues()...)
		if len(args) > 0 {
			if values = config.JobValues(args[0]); values == nil {
				return notInFiles(config, args[0])
			}
		}
		list := make([]shownValue, len(values))
		for i, v := range values {
			list[i] = shownValue{v.Key, v.Value, v.Origin.String()}
		}
		return view[shownValue]{columns: []column[shownValue]{
			{title: "key", cell: func(v shownValue) string { return v.Key }},
			{title: "value", cell: func(v shownValue) string { return inline(v.Value) }},
			{title: "from", cell: func(v shownValue) string { return v.From }},
		}}.print(t, *output, list)
	}
	return cmd
}

func notInFiles(config *configs.Config, name string) error {
	known := namesOf(config.Jobs, func(job *jobs.Job) string { return job.Name })
	if likely := near(name, known); len(likely) > 0 {
		return fmt.Errorf("no job %q in the config; did you mean %s?", name, strings.Join(likely, " or "))
	}
	return fmt.Errorf("no job %q in the config, which has %d", name, len(known))
}

// inline formats a value on one line: a string as it is, anything else as JSON.
func inline(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case map[string]int:
		return weights(v)
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Sprint(value)
	}
	return strings.TrimSpace(b.String())
}

func (t *tool) configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of config files",
		Long: `Print the JSON Schema of config files: every key with its type, default, description and an example. With it,
editors complete keys and underline mistakes in files that begin with

  # yaml-language-server: $schema=./` + configs.SchemaFile,
		Example: `  lockstep config schema > ` + configs.SchemaFile,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return t.write(string(configs.Schema())) },
	}
}

func (t *tool) configImportCommand() *cobra.Command {
	var system bool
	var timezone string
	crontab := &cobra.Command{
		Use:   "crontab FILE",
		Short: "Turn a crontab into a config file",
		Long:  `Print a config file with the jobs of a crontab, and comments on what has no equivalent. FILE - is standard input.`,
		Example: `  crontab -l | lockstep config import crontab - --timezone Europe/Berlin > conf.d/cron.yaml
  lockstep config import crontab /etc/crontab --system`,
		Args: oneArg("a FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := cronspec.LoadZone(timezone); err != nil {
				return exit(exitUsage, err)
			}
			text, err := t.readInput(args[0])
			if err != nil {
				return err
			}
			return t.write(string(configs.ImportCrontab(text, configs.ImportOptions{Timezone: timezone, System: system})))
		},
	}
	crontab.Flags().BoolVar(&system, "system", false, "the sixth field is a user, as in /etc/crontab")
	crontab.Flags().StringVar(&timezone, "timezone", "", "the `ZONE` of the machine that the crontab is from")
	kubernetes := &cobra.Command{
		Use:     "k8s FILE",
		Short:   "Turn Kubernetes CronJobs into a config file",
		Long:    `Print a config file with the CronJobs among Kubernetes manifests, and comments on what has no equivalent. FILE - is standard input.`,
		Example: `  kubectl get cronjobs -o yaml | lockstep config import k8s -`,
		Args:    oneArg("a FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := t.readInput(args[0])
			if err != nil {
				return err
			}
			config, err := configs.ImportCronJobs(text)
			if err != nil {
				return exit(exitUsage, fmt.Errorf("%s: %w", args[0], err))
			}
			return t.write(string(config))
		},
	}
	return group("import", "Turn a crontab or Kubernetes CronJobs into a config file",
		"Print a config file made from what runs elsewhere, with comments on what has no equivalent.", crontab, kubernetes)
}

// readInput reads a file, or standard input for "-".
func (t *tool) readInput(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(t.stdin)
	}
	return os.ReadFile(path)
}
