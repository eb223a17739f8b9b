package cmd

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/locks/redistest"
)

// pty is a terminal with a tool in it.
type pty struct {
	*process
	master, slave *os.File
	screen        *output      // everything that was printed
	before        unix.Termios // its settings when it was made
}

// launchInPTY starts the tool in a terminal of 80x24.
func launchInPTY(t *testing.T, env []string, args ...string) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	p := &pty{master: master, slave: slave, screen: new(output)}
	p.resize(t, 80, 24)
	p.before = p.settings(t)
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(p.screen, master) // until the slave is closed
	}()
	t.Cleanup(func() {
		_ = slave.Close()
		<-read
		_ = master.Close()
		if t.Failed() {
			t.Logf("the terminal received %q", tail(p.screen.String()))
		}
	})
	p.process = launchWith(t, toolPath, env, func(one *process) {
		one.Stdin, one.Stdout = slave, slave
		one.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}, args...)
	return p
}

func (p *pty) resize(t *testing.T, cells, rows uint16) {
	t.Helper()
	must(t, unix.IoctlSetWinsize(int(p.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cells}))
}

func (p *pty) settings(t *testing.T) unix.Termios {
	t.Helper()
	settings, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	must(t, err)
	return *settings
}

func (p *pty) types(t *testing.T, text string) {
	t.Helper()
	_, err := p.master.WriteString(text)
	must(t, err)
}

func (p *pty) shows(t *testing.T, text string) {
	t.Helper()
	eventually(t, 30*time.Second, "the terminal shows "+text, func() bool { return strings.Contains(p.screen.String(), text) })
}

func TestTopRestoresTheTerminal(t *testing.T) {
	t.Parallel()
	env := toolEnv(t, "REDIS_URL="+redistest.New(t, redistest.Options{}).URL(), "TERM=xterm-256color", "NO_COLOR=1")
	for name, leave := range map[string]struct {
		by   func(t *testing.T, p *pty)
		code int
	}{
		"q":       {func(t *testing.T, p *pty) { p.types(t, "q") }, 0},
		"Ctrl-C":  {func(t *testing.T, p *pty) { p.types(t, "\x03") }, 0},
		"SIGTERM": {func(_ *testing.T, p *pty) { p.signal(syscall.SIGTERM) }, exitInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := launchInPTY(t, env, "top")
			p.shows(t, "WORKERS 0")
			if during := p.settings(t); during == p.before {
				t.Error("the terminal still echoes keys")
			}
			p.types(t, "?")
			p.shows(t, "KEYS")
			p.resize(t, 20, 5)
			p.shows(t, "too small")
			leave.by(t, p)
			if got := p.code(30 * time.Second); got != leave.code {
				t.Errorf("exit code %d, want %d: %s", got, leave.code, p.stderr)
			}
			if after := p.settings(t); after != p.before {
				t.Errorf("the terminal has the settings %+v, want %+v", after, p.before)
			}
			for _, sequence := range []string{"\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"} {
				p.shows(t, sequence) // the terminal may receive it after the exit
			}
			screen := p.screen.String()
			if strings.LastIndex(screen, "\x1b[?1049l") < strings.LastIndex(screen, "WORKERS") {
				t.Error("the screen of before does not return")
			}
			if color := regexp.MustCompile(`\x1b\[[0-9;]*3[1-7][0-9;]*m`).FindString(screen); color != "" {
				t.Errorf("with NO_COLOR, the terminal received the color %q", color)
			}
		})
	}
}

func TestTopRefusesATerminalWithoutACursor(t *testing.T) {
	t.Parallel()
	env := toolEnv(t, "REDIS_URL=redis://127.0.0.1:1", "TERM=dumb")
	p := launchInPTY(t, env, "top")
	if got := p.code(30 * time.Second); got != exitUsage || !strings.Contains(p.stderr.String(), "use lockstep top --once") {
		t.Errorf("exit code %d, %q; want %d and the remedy", got, p.stderr, exitUsage)
	}
}
