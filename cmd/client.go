//go:build !unix

package cmd

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// On a system without process groups, signals and orphans that a process can adopt, a command could
// outlive its lock. There this program is only a client: it inspects and acts.

func (t *tool) startCommand() *cobra.Command { return notHere("start", "Start a worker") }

func (t *tool) demoCommand() *cobra.Command {
	return notHere("demo", "See it work, with nothing else installed")
}

func (t *tool) lockExecCommand() *cobra.Command {
	return notHere("exec", "Run a command under a bundle of locks, like flock(1)")
}

// notHere returns a command that refuses whatever its arguments are.
func notHere(name, short string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short + " (not on this system)", DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return refuse("%s does not run on this system, where a command could outlive its lock; run it on Linux or macOS", cmd.CommandPath())
		},
	}
}

// No process here is the working child of another one.
const (
	childWord   = "worker:"
	orphanLimit = time.Second
)

type upward struct{}

func openUpward() (*upward, error)            { return nil, errors.New("no worker runs on this system") }
func (*upward) obey(signals chan<- os.Signal) { close(signals) }
func (*upward) answer()                       {}
func (*upward) reloading()                    {}
func (*upward) reloaded()                     {}
func (*upward) orderly()                      {}

// exited is true: a demo, which runs on other systems, has no process here.
func exited(int) bool { return true }
