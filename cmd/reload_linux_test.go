package cmd

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/locks/redistest"
)

// A terminal that is closed sends SIGHUP too. It must not leave an unseen worker behind: the worker
// drains.
func TestClosedTerminalDrainsTheWorker(t *testing.T) {
	t.Parallel()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)

	server := redistest.New(t, redistest.Options{})
	config := writeFile(t, "lockstep.yaml", `jobs: {a: {command: ["true"]}}`)
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+config)
	worker := launchWith(t, toolPath, env, func(p *process) {
		p.Stdin = terminal
		p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	}, "start")
	must(t, terminal.Close())
	page := pageOf(t, worker)

	worker.signal(syscall.SIGHUP) // the terminal is still open: it reloads
	eventually(t, 30*time.Second, "it has reloaded", func() bool { return configOf(t, page).Reloads == 1 })
	must(t, master.Close())
	if code := worker.code(30 * time.Second); code != 0 {
		t.Errorf("exit code %d after its terminal was closed, want 0", code)
	}
	if workers := ask[[]workerJSON](t, env, "worker", "ls"); len(workers) != 0 {
		t.Errorf("workers %+v are left", workers)
	}
}
