//go:build linux

package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"lockstep/jobs/command"
	"lockstep/locks/bootclock"
)

func ExampleExecutor_Run() {
	// The main function of this program calls command.GuardMain when its first argument is "guard".
	self, err := command.Self()
	if err != nil {
		panic(err)
	}
	executor, err := command.New(command.Options{Guard: []string{self, "guard"}})
	if err != nil {
		panic(err)
	}
	lease := bootclock.Now() + 10*time.Second
	err = executor.Run(context.Background(), command.Spec{
		Argv:   []string{"sh", "-c", "echo settled; exit 3"},
		Stdout: os.Stdout,
		KillBy: func() time.Duration { return lease }, // every renewal would move it forward
	})
	var exit *command.ExitError
	fmt.Println(err, errors.As(err, &exit) && exit.ExitCode() == 3)
	// Output:
	// settled
	// exit status 3 true
}
