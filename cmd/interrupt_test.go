package cmd

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// One signal ends a command, even one that reads from a pipe.
func TestSignalEndsACommandThatReadsAPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe.yaml")
	must(t, syscall.Mkfifo(pipe, 0o600))
	check := launch(t, toolEnv(t), "check", pipe)
	eventually(t, 20*time.Second, "it reads the pipe", func() bool {
		// refused until the pipe has a reader
		writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			t.Cleanup(func() { _ = writer.Close() })
		}
		return err == nil
	})
	check.signal(syscall.SIGINT)
	if got := check.code(20 * time.Second); got != exitInterrupted {
		t.Errorf("exit code %d, want %d", got, exitInterrupted)
	}
}
