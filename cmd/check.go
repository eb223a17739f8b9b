package cmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep/configs"
)

func (t *tool) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [PATH...]",
		Short: "Check config files",
		Long: `Check the config files and folders that are named, else the config that a worker would use. All errors and
warnings of all files come at once, with the place and the remedy. Nothing is asked of Redis.

Exits with 3 when there are errors; warnings alone are 0.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			paths := configs.Find(append(t.flags.config, args...), nil)
			if len(paths) == 0 {
				return refuse("no config to check: name a file or folder, set LOCKSTEP_CONFIG, or write ./lockstep.yaml")
			}
			config, err := configs.Load(configs.Options{Paths: paths, Flags: cmd.Flags(), FlagKeys: flagKeys})
			var problems configs.Problems
			switch {
			case errors.As(err, &problems):
				err = exit(exitConfig, nil)
			case err != nil:
				return err
			default:
				problems = config.Warnings
			}
			_, printed := fmt.Fprintln(t.stdout, problems.Error()) // they are what was asked for: data, not a failure
			return errors.Join(printed, err)
		},
	}
}
