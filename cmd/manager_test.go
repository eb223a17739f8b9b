package cmd

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// systemd is the side of a service manager: a socket that collects the messages of a service.
type systemd struct {
	socket string

	mu       sync.Mutex
	messages []string
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	folder, err := os.MkdirTemp("", "sd") //nolint:usetesting // the path of a socket must be short
	must(t, err)
	s := &systemd{socket: filepath.Join(folder, "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.messages = append(s.messages, string(buffer[:n]))
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
		_ = os.RemoveAll(folder)
		if t.Failed() {
			t.Logf("the service manager received %q", s.received())
		}
	})
	return s
}

// env returns the variables that systemd sets for a service with Type=notify and WatchdogSec.
func (s *systemd) env(watchdog time.Duration) []string {
	return []string{"NOTIFY_SOCKET=" + s.socket, "WATCHDOG_USEC=" + strconv.FormatInt(watchdog.Microseconds(), 10)}
}

func (s *systemd) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

// count returns how many messages have this line.
func (s *systemd) count(line string) int {
	n := 0
	for _, message := range s.received() {
		if slices.Contains(strings.Split(message, "\n"), line) {
			n++
		}
	}
	return n
}

// value returns the last value of a variable.
func (s *systemd) value(name string) string {
	for _, message := range slices.Backward(s.received()) {
		for line := range strings.SplitSeq(message, "\n") {
			if value, ok := strings.CutPrefix(line, name+"="); ok {
				return value
			}
		}
	}
	return ""
}

// awaits waits until the last value of a variable begins with this text.
func (s *systemd) awaits(t *testing.T, name, text string) {
	t.Helper()
	eventually(t, 30*time.Second, name+" is "+text, func() bool { return strings.HasPrefix(s.value(name), text) })
}

// The manager learns that a worker is ready when /readyz does, and not before, and it learns each
// later change.
func TestServiceManagerFollowsReadiness(t *testing.T) {
	t.Parallel()
	s, folder := newSystemd(t), t.TempDir()
	write(t, filepath.Join(folder, "wait"), "")
	f, server := newPack(t, `jobs: {works: {command: ["true"]}}`, append(s.env(200*time.Millisecond), withHandlers+"=1", hooksIn+"="+folder)...)
	f.start()
	worker := f.workers[0]
	s.awaits(t, "STATUS", "not ready: the worker has not started")
	if got := s.count("READY=1"); got != 0 {
		t.Errorf("READY=1 was sent while OnStart runs")
	}
	must(t, os.Remove(filepath.Join(folder, "wait")))
	s.awaits(t, "READY", "1")
	if status, body := fetch(t, "http://"+pageOf(t, worker)+"/readyz"); status != http.StatusOK {
		t.Errorf("/readyz after READY=1: %d %s", status, body)
	}
	s.awaits(t, "STATUS", "ready, ")

	must(t, server.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	s.awaits(t, "STATUS", "not ready: redis is not usable")
	before := s.count("WATCHDOG=1")
	eventually(t, 30*time.Second, "the watchdog is fed although Redis refuses writes", func() bool { return s.count("WATCHDOG=1") >= before+5 })
	must(t, server.Client(t).ConfigSet(t.Context(), "maxmemory", "0").Err())
	s.awaits(t, "STATUS", "ready, ")
	if got := s.count("READY=1"); got != 1 {
		t.Errorf("READY=1 was sent %d times, want once", got)
	}

	worker.signal(syscall.SIGTERM)
	if code := worker.code(30 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	s.awaits(t, "STOPPING", "1")
	if got, want := s.value("EXTEND_TIMEOUT_USEC"), strconv.FormatInt((50*time.Second+afterDrain).Microseconds(), 10); got != want {
		t.Errorf("EXTEND_TIMEOUT_USEC=%s, want %s: the drain timeout and the time after it", got, want)
	}
}

func TestServiceManagerFollowsReloads(t *testing.T) {
	t.Parallel()
	s := newSystemd(t)
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, s.env(200*time.Millisecond)...)
	f.startAll(1)
	s.awaits(t, "READY", "1")
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	reloads := func(n int) {
		t.Helper()
		f.workers[0].signal(syscall.SIGHUP)
		eventually(t, 30*time.Second, "the reload ends", func() bool { return s.count("RELOADING=1") == n && s.count("READY=1") == n+1 })
	}
	reloads(1)
	if got, err := strconv.ParseInt(s.value("MONOTONIC_USEC"), 10, 64); err != nil || got < now.Nano()/1000 {
		t.Errorf("MONOTONIC_USEC is %d, %v; want a time after %d", got, err, now.Nano()/1000)
	}
	write(t, f.config, "jobs: {works: {comand: x}}")
	reloads(2)
	s.awaits(t, "STATUS", "ready, as ")
	eventually(t, 30*time.Second, "the status says that the new config has errors", func() bool {
		return strings.HasSuffix(s.value("STATUS"), "; the new config has errors, the old one stays")
	})
	write(t, f.config, `jobs: {works: {command: ["false"]}}`)
	reloads(3)
	eventually(t, 30*time.Second, "the status of a good config", func() bool { return !strings.Contains(s.value("STATUS"), "errors") })
}

// The parent could feed a watchdog forever, so it does so only when the child answers.
func TestWatchdogIsNotFedForAChildThatHangs(t *testing.T) {
	t.Parallel()
	s := newSystemd(t)
	const watchdog = 400 * time.Millisecond
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, append(s.env(watchdog), long)...)
	f.startAll(1)
	fed := func(more int) {
		t.Helper()
		before := s.count("WATCHDOG=1")
		eventually(t, 30*time.Second, "the watchdog is fed", func() bool { return s.count("WATCHDOG=1") >= before+more })
	}
	s.awaits(t, "READY", "1")
	fed(3)
	child := f.workers[0].worker()
	must(t, syscall.Kill(child, syscall.SIGSTOP))
	last, since := -1, time.Now()
	eventually(t, 30*time.Second, "the watchdog is not fed for five times its time", func() bool {
		if now := s.count("WATCHDOG=1"); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 5*watchdog
	})
	must(t, syscall.Kill(child, syscall.SIGCONT))
	fed(3)

	// A crash is not a hang: the parent repairs it.
	must(t, syscall.Kill(child, syscall.SIGKILL))
	eventually(t, 30*time.Second, "another child works", func() bool { next := f.workers[0].worker(); return next != 0 && next != child })
	fed(3)
}

// systemd ends a worker with SIGABRT when its watchdog is not fed, and starts it again: unless it
// seems to have exited with 2, as a program in Go does after that signal. That means a refusal.
func TestAWorkerThatTheWatchdogEndsIsNotTakenForARefusal(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, append(newSystemd(t).env(time.Minute), long)...)
	f.startAll(1)
	worker := f.workers[0]
	must(t, syscall.Kill(worker.Process.Pid, syscall.SIGABRT))
	<-worker.done
	if status, ok := worker.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGABRT {
		t.Errorf("it has ended with %v, want by the signal", worker.ProcessState)
	}
}

// While Redis is unreachable after a crash, no child runs, and the parent waits for the repair.
func TestWatchdogIsFedWhileNoChildCanStart(t *testing.T) {
	t.Parallel()
	s, folder := newSystemd(t), t.TempDir()
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, append(s.env(400*time.Millisecond), withHandlers+"=1", hooksIn+"="+folder)...)
	f.startAll(1)
	s.awaits(t, "READY", "1")
	write(t, filepath.Join(folder, "refuse"), "")
	must(t, syscall.Kill(f.workers[0].worker(), syscall.SIGKILL))
	s.awaits(t, "STATUS", "not ready: no worker is running after a crash: OnStart: no database at 10.0.0.7")
	before := s.count("WATCHDOG=1")
	eventually(t, 30*time.Second, "the watchdog is fed", func() bool { return s.count("WATCHDOG=1") >= before+10 })
	must(t, os.Remove(filepath.Join(folder, "refuse")))
	s.awaits(t, "STATUS", "ready, ")
}

// A job that could write to the socket could report anything as the worker.
func TestJobsDoNotInheritTheServiceManager(t *testing.T) {
	t.Parallel()
	s := newSystemd(t)
	f, _ := newPack(t, `
worker: {env: ["*"]}
jobs: {looks: {command: [sh, -c, 'env; tr "\0" "\n" < /proc/$PPID/environ']}}
`, append(s.env(time.Minute), "WATCHDOG_PID=1", "KEPT=kept")...)
	f.startAll(1)
	run := f.enqueue("looks", "a")
	f.await(run, "succeeded")
	stdout, stderr, code := runTool(t, f.env, "run", "output", run)
	if code != 0 || strings.Count(stdout, "KEPT=kept\n") != 2 {
		t.Fatalf("%d %s%s, want the environments of the command and its guard", code, stdout, stderr)
	}
	for _, no := range []string{"NOTIFY_SOCKET", "WATCHDOG_"} {
		if strings.Contains(stdout, no) {
			t.Errorf("the command, or its guard, has %s:\n%s", no, stdout)
		}
	}
}
