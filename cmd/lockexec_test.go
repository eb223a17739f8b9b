package cmd

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// underLock starts a lock exec with a short lease. Its command prints its process ID and then
// sleeps.
func underLock(t *testing.T, server *redistest.Server) (p *process, env []string, command int) {
	t.Helper()
	env = toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_LOCKS__LEASE=2s")
	p = launch(t, env, "lock", "exec", "--exclusive", "a", "--", "sh", "-c", "echo $$; exec sleep 300")
	eventually(t, 10*time.Second, "the command prints its id", func() bool {
		var err error
		command, err = strconv.Atoi(strings.TrimSpace(p.stdout.String()))
		return err == nil
	})
	return p, env, command
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestCommandIsEndedWhenItsSessionIs(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	p, env, command := underLock(t, server)
	lock := ask[struct {
		Holders []struct{ Worker string }
	}](t, env, "lock", "show", "a")
	if n, err := server.Client(t).ZRem(t.Context(), "{lockstep}:exp", "s"+lock.Holders[0].Worker).Result(); n != 1 || err != nil {
		t.Fatalf("end the session: %d, %v", n, err)
	}
	if got := p.code(10 * time.Second); got != exitLost {
		t.Errorf("exit code %d, want %d", got, exitLost)
	}
	if stderr := p.stderr.String(); !strings.HasPrefix(stderr, "lockstep: the command was ended: lock is lost") {
		t.Errorf("stderr %q, want that the lock was lost", stderr)
	}
	if !gone(command) {
		t.Error("the command is still there")
	}
}

func TestCommandIsEndedWhenRedisIsUnreachableForTooLong(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	p, _, command := underLock(t, server)
	server.Kill()
	if got := p.code(10 * time.Second); got != exitLost {
		t.Errorf("exit code %d, want %d", got, exitLost)
	}
	if !gone(command) {
		t.Error("the command is still there")
	}
}

// A frozen lock exec cannot end anything: its guard ends the command.
func TestCommandOfAFrozenLockExecIsEndedBeforeTheLockPassesOn(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	p, env, command := underLock(t, server)
	p.signal(syscall.SIGSTOP)
	// The shell prints whether the first command still exists when the second one starts.
	stdout, stderr, code := runTool(t, env, "lock", "exec", "--exclusive", "a", "--wait", "20s", "--",
		"sh", "-c", "kill -0 "+strconv.Itoa(command)+" 2>/dev/null && echo both || echo alone")
	if code != 0 || stdout != "alone\n" {
		t.Errorf("the next holder: exit code %d, %q, %s; want that it is alone", code, stdout, stderr)
	}
	p.signal(syscall.SIGCONT)
	if got := p.code(10 * time.Second); got != exitLost {
		t.Errorf("exit code %d, want %d", got, exitLost)
	}
}
