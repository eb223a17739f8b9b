package cmd

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"lockstep/configs"
)

// starter is the config that init writes. A test checks that it has no problems.
//
//go:embed init.yaml
var starter []byte

func (t *tool) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a commented starter config",
		Long: `Write lockstep.yaml, a config with comments and one job of each kind, into the folder (default: the current one),
and beside it the JSON Schema with which editors complete keys and underline mistakes. An existing lockstep.yaml is
left alone.`,
		Args: atMostOneArg("a DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			path := filepath.Join(dir, "lockstep.yaml")
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return refuse("%s already exists, and is left alone; name another folder, or remove it", path)
			}
			if err != nil {
				return err
			}
			_, err = file.Write(starter)
			err = errors.Join(err, file.Close())
			schema := filepath.Join(dir, configs.SchemaFile)
			if err == nil {
				err = os.WriteFile(schema, configs.Schema(), 0o644)
			}
			// such as a full disk: half a config would keep the next init from writing one
			if err != nil {
				return errors.Join(err, os.Remove(path))
			}
			where := ""
			if dir != "." {
				where = fmt.Sprintf(" -c %s", path)
			}
			return t.write(fmt.Sprintf("wrote %s and %s\nnow:  lockstep check%s\n      lockstep start%s\n", path, schema, where, where))
		},
	}
}
