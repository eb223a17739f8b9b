// Skewed is the tool with a wall clock that is wrong by LOCKSTEP_TEST_CLOCK seconds, for tests of replicas whose clocks
// differ. The runtime reads clocks through a function of the kernel's, whose address it keeps in a variable; here that is
// exchanged for one that adds to the wall clock and leaves the others alone. Build it with -ldflags=-checklinkname=0.
package main

import (
	"fmt"
	"os"
	"strconv"
	_ "unsafe" // for linkname

	"lockstep/cmd"
	"lockstep/jobs"
)

//go:linkname clockGettime runtime.vdsoClockgettimeSym
var clockGettime uintptr

// offset is added to the wall clock by clock_amd64.s, in seconds.
var offset int64

// address returns the address of the exchanged function.
func address() uintptr

func main() {
	var err error
	if offset, err = strconv.ParseInt(os.Getenv("LOCKSTEP_TEST_CLOCK"), 10, 64); err != nil {
		fmt.Fprintln(os.Stderr, "LOCKSTEP_TEST_CLOCK:", err)
		os.Exit(2)
	}
	clockGettime = address()
	cmd.Main(jobs.NewRegistry())
}
