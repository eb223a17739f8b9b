package cmd

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// underLock starts a lock exec with this lease. Its command prints its process ID and then sleeps.
func underLock(t *testing.T, server *redistest.Server, lease string) (p *process, env []string, command int) {
	t.Helper()
	env = toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_LOCKS__LEASE="+lease)
	p = launch(t, env, "lock", "exec", "--exclusive", "a", "--", "sh", "-c", "echo $$; exec sleep 300")
	eventually(t, 30*time.Second, "the command prints its id", func() bool {
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
	p, env, command := underLock(t, server, "15s")
	lock := ask[struct {
		Holders []struct{ Worker string }
	}](t, env, "lock", "show", "a")
	if n, err := server.Client(t).ZRem(t.Context(), "{lockstep}:exp", "s"+lock.Holders[0].Worker).Result(); n != 1 || err != nil {
		t.Fatalf("end the session: %d, %v", n, err)
	}
	if got := p.code(30 * time.Second); got != exitLost {
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
	p, _, command := underLock(t, server, "2s")
	server.Kill()
	if got := p.code(30 * time.Second); got != exitLost {
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
	p, env, command := underLock(t, server, "2s")
	p.signal(syscall.SIGSTOP)
	// The shell prints whether the first command still exists when the second one starts.
	stdout, stderr, code := runTool(t, env, "lock", "exec", "--exclusive", "a", "--wait", "20s", "--",
		"sh", "-c", "kill -0 "+strconv.Itoa(command)+" 2>/dev/null && echo both || echo alone")
	if code != 0 || stdout != "alone\n" {
		t.Errorf("the next holder: exit code %d, %q, %s; want that it is alone", code, stdout, stderr)
	}
	p.signal(syscall.SIGCONT)
	if got := p.code(30 * time.Second); got != exitLost {
		t.Errorf("exit code %d, want %d", got, exitLost)
	}
}

// With signalAtGrant in its environment, the program with handlers sends itself a SIGTERM between
// the grant and the start of the command of lock exec.
const signalAtGrant = "LOCKSTEP_CMD_TEST_GRANT"

func terminateItself() {
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, syscall.SIGTERM)
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		panic(err)
	}
	<-arrived
	signal.Stop(arrived) // it returns when the signal has reached all channels
}

func TestSignalAtTheGrantEndsLockExec(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_LOCKS__LEASE=60s", withHandlers+"=1")
	trace := filepath.Join(t.TempDir(), "started")
	_, stderr, code := runTool(t, append(env, signalAtGrant+"=1"), "lock", "exec", "--exclusive", "a", "--", "touch", trace)
	if code != exitInterrupted || exists(trace) {
		t.Errorf("exit code %d, the command has run: %v, %s; want %d, and no command", code, exists(trace), stderr, exitInterrupted)
	}
	if _, stderr, code := runTool(t, env, "lock", "exec", "--exclusive", "a", "--wait", "0s", "--", "true"); code != 0 {
		t.Errorf("the next holder: exit code %d, %s; want the lock to be free", code, stderr)
	}
}

// The command has ended, Redis does not answer, and the lease is long.
func TestSignalEndsTheReleaseOfLockExec(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	gate, pid := filepath.Join(t.TempDir(), "gate"), 0
	p := launch(t, toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_LOCKS__LEASE=5m"),
		"lock", "exec", "--exclusive", "a", "--", "sh", "-c", "echo $$; until [ -e "+gate+" ]; do sleep 0.05; done; exit 7")
	eventually(t, 30*time.Second, "the command prints its id", func() bool {
		var err error
		pid, err = strconv.Atoi(strings.TrimSpace(p.stdout.String()))
		return err == nil
	})
	must(t, server.Pause())
	write(t, gate, "")
	eventually(t, 30*time.Second, "the command has ended", func() bool { return gone(pid) })
	// Signals arrive until the process has ended, so one of them arrives while it exits.
	for limit := time.After(20 * time.Second); !p.hasEnded(); {
		select {
		case <-limit:
			t.Fatal("lock exec does not end within 20s")
		default:
			_ = p.Process.Signal(syscall.SIGTERM) // it may end at this moment
		}
	}
	if code := p.code(time.Second); code != 7 || !strings.Contains(p.stderr.String(), "a signal ended the wait for Redis") {
		t.Errorf("exit code %d, %s; want that of the command, 7, and the reason", code, p.stderr.String())
	}
}
