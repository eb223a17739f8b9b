//go:build unix

// Package asguard makes a program run as the guard of a command if it was started as one. It does
// so in its own initialization, before most other packages are initialized and before main.
//
// A worker starts its own program again for each command, so what a guard initializes determines
// how soon a command starts, and how many commands a host can start in a second. Package
// lockstep/jobs/command/guard explains which imports come earlier. The order of initialization is
// part of the Go language. If another order applied, guards would take longer and do the same.
// Initialization takes place on one thread, which a guard needs.
//
// Only lockstep/cmd can import this package: other programs, even those that run commands with
// lockstep/jobs/command, decide in their own main function what they are.
package asguard

import (
	"os"

	"lockstep/jobs/command/guard"
)

// Word is the first argument of a program that runs as a guard.
const Word = "guard:"

func init() {
	if len(os.Args) > 1 && os.Args[1] == Word {
		os.Exit(guard.Main())
	}
}
