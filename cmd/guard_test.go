//go:build linux

package cmd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/cmd/internal/asguard"
	"lockstep/jobs/command"
)

// A guard is this whole program, started once for each command. Most packages of a worker must not
// be initialized in it: that alone takes three times as long as an empty Go program.
func TestGuardInitializesFewPackages(t *testing.T) {
	t.Parallel()
	initialized := func(args ...string) []string {
		tool := exec.CommandContext(t.Context(), toolPath, args...)
		tool.Env = toolEnv(t, "GODEBUG=inittrace=1")
		out, _ := tool.CombinedOutput() // a guard without pipes fails
		var packages []string
		for line := range strings.Lines(string(out)) { // init NAME @0.5 ms, 0.01 ms clock, ...
			if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "init" {
				packages = append(packages, fields[1])
			}
		}
		return packages
	}
	guard, worker := initialized(asguard.Word), initialized("version")
	if !slices.Contains(guard, "os/signal") {
		t.Errorf("a guard initializes %v, want what it uses among them", guard)
	}
	for _, no := range []string{"reflect", "unicode", "encoding/gob", "net", "github.com/prometheus/client_golang/prometheus", "lockstep/locks"} {
		if !slices.Contains(worker, no) {
			t.Errorf("other processes do not initialize %s either, so this test proves nothing about it", no)
		}
		if slices.Contains(guard, no) {
			t.Errorf("a guard initializes %s; see the doc of jobs/command/guard", no)
		}
	}
}

// A guard is compared with a process of the same program that initializes all of it: both load the
// same file, so a slow or busy machine slows both. A guard takes less than half of that processor
// time. If it initialized all of the program too, it would take as much.
func TestGuardCostsLessThanTheWholeProgram(t *testing.T) {
	commands, err := command.New(command.Options{Guard: []string{plainPath, asguard.Word}})
	if err != nil {
		t.Fatal(err)
	}
	onOneProcessor(t)
	plain := func(argv ...string) {
		if err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Run(); err != nil {
			t.Error(err)
		}
	}
	// Other tests start processes too, so the minimum of many runs counts, and the programs take
	// turns.
	costs := map[string][]time.Duration{}
	for range 25 {
		for what, start := range map[string]func(){
			"guarded": func() {
				if err := commands.Run(t.Context(), command.Spec{Argv: []string{"true"}}); err != nil {
					t.Error(err)
				}
			},
			"true":  func() { plain("true") },
			"whole": func() { plain(plainPath, "version") },
		} {
			before := childrenTime(t)
			start()
			costs[what] = append(costs[what], childrenTime(t)-before)
		}
	}
	guard, whole := slices.Min(costs["guarded"])-slices.Min(costs["true"]), slices.Min(costs["whole"])
	t.Logf("a guard takes %v of processor time, the whole program %v", guard, whole)
	if most := whole * 2 / 3; guard > most {
		t.Errorf("a guard takes %v of processor time, want at most %v, two thirds of that of the whole program", guard, most)
	}
}

func TestGuardNeedsLittleMemory(t *testing.T) {
	commands, err := command.New(command.Options{Guard: []string{plainPath, asguard.Word}})
	if err != nil {
		t.Fatal(err)
	}
	pid := filepath.Join(t.TempDir(), "pid")
	done := make(chan error, 1)
	stop := make(chan os.Signal, 1)
	go func() {
		done <- commands.Run(t.Context(), command.Spec{Argv: []string{"sh", "-c", "echo $PPID > " + pid + ".new; mv " + pid + ".new " + pid + "; exec sleep 1000"}, Signals: stop})
	}()
	eventually(t, 20*time.Second, "the command runs", func() bool { return exists(pid) })
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%s/smaps_rollup", bytes.TrimSpace(text)))
	stop <- syscall.SIGKILL
	if killed := <-done; killed == nil {
		t.Error("the command ended by itself")
	}
	if err != nil {
		t.Fatal(err)
	}
	kib := 0 // a guard's own pages; all its processes share those of the program's file
	for line := range strings.Lines(string(rollup)) {
		if size, found := strings.CutPrefix(line, "Anonymous:"); found {
			if kib, err = strconv.Atoi(strings.Fields(size)[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("a guard has %d KiB of its own", kib)
	if kib == 0 || kib > 4<<10 {
		t.Errorf("a guard has %d KiB of its own, want at most 4096", kib)
	}
}

// A daemon that a command started keeps working until its guard is killed, and no longer. The next
// attempt follows at once.
func TestKilledGuardLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, "", long)
	script := filepath.Join(t.TempDir(), "script.sh")
	write(t, script, fmt.Sprintf(effectLine, f.effects)+fmt.Sprintf(`
case "$1 $LOCKSTEP_ATTEMPT" in
daemon*) while :; do e start; sleep 0.01; done ;;
*1) (setsid sh %s daemon &); sleep 1000 ;;
*) e start; sleep 0.5; e end ;;
esac
`, script))
	write(t, f.config, "jobs: {leaves: {command: [sh, "+script+"], lock: "+anyLock+", retry: {max: 1, initial: 100ms}}}")
	f.startAll(1)
	run := f.enqueue("leaves", "x")
	eventually(t, 20*time.Second, "the daemon works", func() bool { return exists(f.effects) })
	guards := childrenOf(f.workers[0].worker())
	if len(guards) != 1 {
		t.Fatalf("the worker has the children %v, want a guard", guards)
	}
	killed := time.Now()
	must(t, syscall.Kill(guards[0], syscall.SIGKILL))
	got := f.await(run, "succeeded")
	if len(got.Attempts) != 2 || got.Attempts[0].outcome() != "failed" {
		t.Errorf("%+v, want a failed attempt and one that succeeded", got)
	}
	t.Logf("the next attempt began %s after the kill", got.Attempts[1].Started.Sub(killed))
	f.checkOverlap() // the daemon wrote no line after the first one of the next attempt
}

// onOneProcessor lets the processes that this test starts run on one processor, the same for all of
// them. On several, their threads wake each other across processors, at a cost that varies.
func onOneProcessor(t *testing.T) {
	t.Helper()
	var all, one unix.CPUSet
	runtime.LockOSThread()
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	one.Set(first)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &all); err != nil {
			t.Error(err) // the thread stays locked, and ends with its goroutine
			return
		}
		runtime.UnlockOSThread()
	})
}

// childrenTime returns the CPU time of all processes that this one has waited for, and of those
// that they have waited for.
func childrenTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
