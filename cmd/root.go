package cmd

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/jobs"
)

// root assembles all commands.
func (t *tool) root() *cobra.Command {
	root := group("lockstep", "One cron schedule and one task queue on many workers, each run once",
		`lockstep runs the same cron schedule and the same task queue on many worker replicas and makes each run happen
once: before a run starts, its worker acquires the job's lock and every resource that the run touches, all or none,
in Redis. The commands below that inspect or act work directly on Redis; they need no worker.

  lockstep demo             see it work, with nothing else installed
  lockstep start            start a worker`)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(t.stdin)
	root.SetOut(t.stdout)
	root.SetErr(t.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return misuse(cmd, "%v", err) })
	flags := root.PersistentFlags()
	flags.StringArrayVarP(&t.configPaths, "config", "c", nil,
		"config `FILE` or folder, repeatable (default: $LOCKSTEP_CONFIG, else ./lockstep.yaml)")
	url := flags.String("redis", "", "`URL` of Redis (default: $LOCKSTEP_REDIS__URL, $REDIS_URL, the config, a running demo)")

	flags.String("redis-password-file", "", "`FILE` with the password of Redis (default: redis.password_file)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Value.Type() == "string" && f.Value.String() == "" { // usually an unset variable
				err = misuse(cmd, "--%s is empty: give a value, or leave the flag out", f.Name)
			}
		})
		if err != nil {
			return err
		}
		// A working child has the arguments of its parent, which has already warned.
		if u := *url; t.parent == nil && jobs.SafeURL(u) != u {
			fmt.Fprintf(t.stderr, "lockstep: warning: --redis %s: the arguments of a process are visible to every user of this host; "+
				"put the password into a file and name it with --redis-password-file, or put the URL into REDIS_URL\n", jobs.SafeURL(u))
		}
		return nil
	}

	root.AddGroup(&cobra.Group{ID: "run", Title: "Run:"}, &cobra.Group{ID: "look", Title: "Inspect and act:"})
	add := func(id string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	add("run", t.startCommand(), t.demoCommand(), t.initCommand(), t.checkCommand(), t.configCommand(), t.scheduleCommand())
	add("look", t.enqueueCommand(), t.jobCommand(), t.runCommand(), t.lockCommand(), t.workerCommand(), t.queueCommand(),
		t.topCommand(), t.notifyCommand(), t.auditCommand(), t.doctorCommand(), t.healthCommand())
	root.AddCommand(t.versionCommand())
	root.AddCommand(topics()...)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	t.completeNames(root)
	return root
}

// Commands returns the command line, for tools that describe it: manual pages and completions. It
// has no handlers; [Main] runs it.
func Commands() *cobra.Command {
	return (&tool{handlers: jobs.NewRegistry(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}).root()
}

// group returns a command that only holds others.
func group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			cmd.SuggestionsMinimumDistance = 2
			hint := fmt.Sprintf("see: %s --help", cmd.CommandPath())
			if likely := cmd.SuggestionsFor(args[0]); len(likely) > 0 {
				hint = "did you mean " + strings.Join(likely, " or ") + "?"
			}
			return refuse("unknown command %q for %s; %s", args[0], cmd.CommandPath(), hint)
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}

// noArgs, oneArg and atMostOneArg check the arguments of a command. what names the expected
// argument: "a JOB".
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return misuse(cmd, "%s takes no arguments, got %q", cmd.Name(), args[0])
	}
	return nil
}

func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return misuse(cmd, "%s needs %s", cmd.Name(), what)
		case 1:
			return nil
		}
		return misuse(cmd, "%s takes one argument, %s, got %d", cmd.Name(), what, len(args))
	}
}

func atMostOneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return misuse(cmd, "%s takes at most one argument, %s, got %d", cmd.Name(), what, len(args))
		}
		return nil
	}
}
