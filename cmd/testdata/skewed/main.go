// Skewed is the tool with a wall clock that is off by LOCKSTEP_TEST_CLOCK seconds, for tests of
// replicas with different clocks. The runtime reads clocks through a function of the kernel and
// keeps its address in a variable. Skewed replaces that address with one of a function that adds to
// the wall clock and leaves the other clocks alone. SIGUSR2 steps the clock of one process forward
// by another 8 s. Build it with -ldflags=-checklinkname=0.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	_ "unsafe" // for linkname

	"lockstep/cmd"
	"lockstep/jobs"
)

//go:linkname clockGettime runtime.vdsoClockgettimeSym
var clockGettime uintptr

// offset is how many seconds clock_amd64.s adds to the wall clock.
var offset int64

// address returns the address of the replacement function.
func address() uintptr

func main() {
	var err error
	if offset, err = strconv.ParseInt(os.Getenv("LOCKSTEP_TEST_CLOCK"), 10, 64); err != nil {
		fmt.Fprintln(os.Stderr, "LOCKSTEP_TEST_CLOCK:", err)
		os.Exit(2)
	}
	clockGettime = address()
	steps := make(chan os.Signal, 1)
	signal.Notify(steps, syscall.SIGUSR2)
	go func() { // ends with the process
		for range steps {
			atomic.AddInt64(&offset, 8)
			fmt.Fprintf(os.Stderr, "the wall clock is %d s ahead\n", atomic.LoadInt64(&offset))
		}
	}()
	cmd.Main(jobs.NewRegistry())
}
