package command

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/jobs/command/guard"
)

// marked starts a process with a mark.
func marked(t *testing.T, mark guard.Mark) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: uint64(mark), Max: unix.RLIM_INFINITY}, nil); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// TestMarkedProcessDiesOnOldKernelsToo: they have no descriptors of processes, or a sandbox forbids
// them. A process with another mark survives until the test ends it.
func TestMarkedProcessDiesOnOldKernelsToo(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{unix.ENOSYS, unix.EPERM, nil} {
		open := func(pid, flags int) (int, error) {
			if refusal != nil {
				return 0, refusal
			}
			return unix.PidfdOpen(pid, flags)
		}
		mark := newMark()
		for cmd, want := range map[*exec.Cmd]syscall.Signal{marked(t, mark): syscall.SIGKILL, marked(t, newMark()): syscall.SIGTERM} {
			killOneMarked(cmd.Process.Pid, mark, open)
			_ = cmd.Process.Signal(syscall.SIGTERM)
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != want {
				t.Errorf("%v: the process ended with %v, want %v", refusal, err, want)
			}
		}
	}
}
