//go:build linux

package command_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/jobs/command"
)

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for want, options := range map[string]command.Options{
		"Guard is required":         {},
		"executable file not found": {Guard: []string{"no-such-program"}},
		"KillAfter -1s is negative": {Guard: []string{os.Args[0]}, KillAfter: -time.Second},
	} {
		if _, err := command.New(options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", options, err, want)
		}
	}
}

func TestRunUsesTheFilesAndTheFolderOfItsSpec(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	input := filepath.Join(folder, "input")
	if err := os.WriteFile(input, []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := os.Create(filepath.Join(folder, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	var stderr bytes.Buffer
	err = newExecutor(0).Run(t.Context(), command.Spec{
		Argv:   []string{"sh", "-c", `cat; echo "$A"; pwd -P >&2`},
		Env:    []string{"PATH=" + os.Getenv("PATH"), "A=1", "A=2"},
		Dir:    folder,
		Stdin:  stdin,
		Stdout: stdout,
		Stderr: &stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(stdout.Name())
	real, _ := filepath.EvalSymlinks(folder)
	if string(got) != "hello\n2\n" || stderr.String() != real+"\n" {
		t.Errorf("stdout %q, stderr %q; want the input, the last A, and the folder %q", got, stderr.String(), real)
	}
	if err := newExecutor(0).Run(t.Context(), command.Spec{Argv: []string{"true"}, Dir: "/no/such/folder"}); err == nil || !strings.Contains(err.Error(), "/no/such/folder") {
		t.Errorf("got %v, want an error that names the folder", err)
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGWINCH
	result := make(chan error, 1)
	go func() {
		result <- newExecutor(0).Run(t.Context(), command.Spec{
			Argv:    []string{"sh", "-c", "trap 'exit 9' INT;" + tree + "wait"},
			Env:     append(os.Environ(), "PIDS="+f.file),
			Signals: signals,
		})
	}()
	f.grown(t)
	signals <- syscall.SIGINT
	close(signals)
	var exit *command.ExitError
	if err := wait(t, result); !errors.As(err, &exit) || exit.Code != 9 {
		t.Errorf("got %v, want the command to have decided for status 9", err)
	}
	if left := f.alive(); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// helperForeground is a program on a terminal that runs a command in its foreground.
func helperForeground(folder string) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT)
	foreground := command.Foreground(os.Stdin)
	err := newExecutor(0).Run(context.Background(), command.Spec{ //nolint:forbidigo // like main
		Argv:       []string{"sh", "-c", "trap 'echo interrupted; exit 5' INT; read line; echo got $line; while :; do sleep 0.1; done"},
		Stdin:      os.Stdin,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		Foreground: foreground,
		KillBy:     never,
	})
	signals := 0
	select {
	case <-caught:
		// the command may have ended because of it before it is passed on here
		signals++
	case <-time.After(10 * time.Second):
	}
	result := fmt.Sprintf("foreground=%v caught=%d %v", foreground, signals, err)
	if err := os.WriteFile(filepath.Join(folder, "result"), []byte(result), 0o600); err != nil {
		panic(err)
	}
}

// openTerminal returns both ends of a new pseudo terminal.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { terminal.Close() })
	return master, terminal
}

func TestCommandInTheForegroundUsesTheTerminal(t *testing.T) {
	t.Parallel()
	master, terminal := openTerminal(t)
	folder := t.TempDir()
	program := exec.Command(os.Args[0], "foreground", folder)
	program.Stdin, program.Stdout, program.Stderr = terminal, terminal, terminal
	// The controlling terminal is its stdin.
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Process.Kill(); _ = program.Wait() })
	terminal.Close()

	screen := ""
	// expect reads the screen until it shows text. The read blocks, so a terminal that shows
	// nothing needs a timeout.
	mute := time.AfterFunc(20*time.Second, func() { _ = program.Process.Kill() })
	defer mute.Stop()
	expect := func(text string) {
		t.Helper()
		buffer := make([]byte, 1024)
		for !strings.Contains(screen, text) {
			n, err := master.Read(buffer)
			if screen += string(buffer[:n]); err != nil {
				t.Fatalf("the terminal shows %q and ends with %v, want %q", screen, err, text)
			}
		}
	}
	if _, err := master.WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	expect("got hello")
	if _, err := master.WriteString("\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	expect("interrupted")
	_ = program.Wait()
	result, err := os.ReadFile(filepath.Join(folder, "result"))
	if want := "foreground=true caught=1 exit status 5"; err != nil || string(result) != want {
		t.Errorf("got %q, %v; want %q: the terminal sends Ctrl-C to both", result, err, want)
	}
}

func TestFilesAreNotAForeground(t *testing.T) {
	t.Parallel()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if command.Foreground(file) {
		t.Error("Foreground(/dev/null) = true")
	}
}

func TestGuardStartedByHandSaysSo(t *testing.T) {
	t.Parallel()
	guard := exec.Command(os.Args[0], "guard")
	output, err := guard.CombinedOutput()
	if guard.ProcessState.ExitCode() != 2 || !strings.Contains(string(output), "not by hand") {
		t.Errorf("got %v and %q, want exit status 2 and a sentence", err, output)
	}
}
