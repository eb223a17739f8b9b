package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// lineFeed starts an enqueue that reads lines from a pipe, which the test writes.
func lineFeed(t *testing.T, env []string, config string) (p *process, feed *os.File) {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "lines")
	must(t, syscall.Mkfifo(pipe, 0o600))
	p = launch(t, env, "enqueue", "hello", "-c", config, "--args-lines", pipe, "--id", "{line}")
	p.told = true
	eventually(t, 20*time.Second, "it reads the pipe", func() bool {
		// refused until the pipe has a reader
		writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		feed = writer
		return err == nil
	})
	t.Cleanup(func() { _ = feed.Close() }) // perhaps once more
	return p, feed
}

// TestAFileOfRequestsIsContinued: by the same command, after an interruption, and through the loss
// of replies. Lines are recorded when they have come, and none twice.
func TestAFileOfRequestsIsContinued(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	proxy := server.Proxy(t)
	env := toolEnv(t, "REDIS_URL="+proxy.URL())
	config := filepath.Join(t.TempDir(), "lockstep.yaml")
	must(t, os.WriteFile(config, []byte("jobs:\n  hello:\n    command: [\"true\"]\n"), 0o600))
	recorded := func() []string {
		runs, err := server.Client(t).HKeys(t.Context(), "{lockstep}:run").Result()
		must(t, err)
		slices.Sort(runs)
		return runs
	}
	write := func(feed *os.File, from, to int) {
		t.Helper()
		var b strings.Builder
		for i := from; i <= to; i++ {
			fmt.Fprintf(&b, "{\"n\": %d}\n", i)
		}
		_, err := feed.WriteString(b.String())
		must(t, err)
	}

	p, feed := lineFeed(t, env, config)
	write(feed, 1, 3)
	eventually(t, 20*time.Second, "three lines are recorded before the fourth has come", func() bool { return strings.Count(p.stdout.String(), "\n") == 3 })
	p.signal(syscall.SIGINT)
	if code := p.code(20 * time.Second); code != exitInterrupted || !strings.Contains(p.stderr.String(), "lockstep: interrupted; the lines up to 3 are recorded; to continue, repeat the command with --id '{line}'") {
		t.Errorf("exit code %d, %s; want %d and what is recorded", code, p.stderr, exitInterrupted)
	}

	// While Redis does not respond, the batch that is being sent is in doubt.
	p, feed = lineFeed(t, env, config)
	write(feed, 1, 3)
	eventually(t, 20*time.Second, "the lines before are found", func() bool { return strings.Count(p.stdout.String(), "\n") == 3 })
	proxy.Set(redistest.Faults{DropReplies: true})
	write(feed, 4, 5)
	eventually(t, 20*time.Second, "two more lines are recorded, but their replies are lost", func() bool { return len(recorded()) == 5 })
	p.signal(syscall.SIGINT)
	if code := p.code(20 * time.Second); code != exitInterrupted || !strings.Contains(p.stderr.String(), "lockstep: interrupted; the lines up to 3 are recorded, and perhaps those up to 5; to continue, ") {
		t.Errorf("exit code %d, %s; want %d, and that two lines are in doubt", code, p.stderr, exitInterrupted)
	}
	proxy.Set(redistest.Faults{})

	p, feed = lineFeed(t, env, config)
	write(feed, 1, 3)
	eventually(t, 20*time.Second, "the lines before are found", func() bool { return strings.Count(p.stdout.String(), "\n") == 3 })
	proxy.Set(redistest.Faults{Refuse: true})
	proxy.Cut()
	write(feed, 4, 5)
	eventually(t, 20*time.Second, "it retries", func() bool { return strings.Contains(p.stderr.String(), "retrying") })
	p.signal(syscall.SIGINT)
	if code := p.code(20 * time.Second); code != exitInterrupted || !strings.Contains(p.stderr.String(), "lockstep: interrupted; the lines up to 3 are recorded") {
		t.Errorf("without Redis: exit code %d, %s; want %d and what is recorded", code, p.stderr, exitInterrupted)
	}
	proxy.Set(redistest.Faults{})

	p, feed = lineFeed(t, env, config)
	write(feed, 1, 5)
	eventually(t, 20*time.Second, "five lines are recorded", func() bool { return strings.Count(p.stdout.String(), "\n") == 5 })
	proxy.Set(redistest.Faults{DropReplies: true})
	write(feed, 6, 400)
	eventually(t, 20*time.Second, "lines are recorded, but their replies are lost", func() bool { return len(recorded()) > 5 })
	proxy.Set(redistest.Faults{})
	proxy.Cut()
	must(t, feed.Close())
	if code := p.code(30 * time.Second); code != 0 || !strings.Contains(p.stderr.String(), "lockstep: cannot record the lines from 6 on, retrying: ") {
		t.Errorf("exit code %d, %s; want 0, and that it had to retry", code, p.stderr)
	}
	var want []string
	for i := range 400 {
		want = append(want, fmt.Sprintf("hello#%d", i+1))
	}
	if got := strings.Fields(p.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("printed are %d runs, want 400 in their order", len(got))
	}
	slices.Sort(want)
	if got := recorded(); !slices.Equal(got, want) {
		t.Errorf("recorded are %d runs, want 400", len(got))
	}
	queued, err := server.Client(t).LLen(t.Context(), "asynq:{default}:pending").Result()
	must(t, err)
	if want := int64(400 - 2 - batchLines); queued != want {
		t.Errorf("%d deliveries are in the queue, want %d: a sweep pushes those of the two lost replies", queued, want)
	}
}

// TestLongLinesAreRecordedInParts: a batch of lines, each of which is allowed, is longer than an
// atomic list may be.
func TestLongLinesAreRecordedInParts(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	env := toolEnv(t, "REDIS_URL="+server.URL())
	config := writeFile(t, "lockstep.yaml", "jobs: {hello: {command: [\"true\"]}}")
	line := fmt.Sprintf("{\"x\": %q}\n", strings.Repeat("x", 125_000))
	lines := writeFile(t, "lines", strings.Repeat(line, 20))
	stdout, stderr, code := runTool(t, env, "enqueue", "hello", "-c", config, "--args-lines", lines, "--id", "{line}")
	if got := strings.Count(stdout, "hello#"); code != 0 || got != 20 {
		t.Errorf("exit code %d, %d runs, %s; want 0 and 20 runs", code, got, stderr)
	}
}

// TestLinesOfABatchInPartsSurviveALostReply: with the definition of their job, the lines are longer
// than what one script records. Whichever script loses its reply, all lines are recorded.
func TestLinesOfABatchInPartsSurviveALostReply(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	proxy := server.Proxy(t)
	env := toolEnv(t, "REDIS_URL="+proxy.URL())
	config := writeFile(t, "lockstep.yaml", fmt.Sprintf("jobs: {hello: {command: [\"true\", %q]}}", strings.Repeat("x", 8000)))
	line := fmt.Sprintf("{\"x\": %q}\n", strings.Repeat("x", 130_950))
	lines := writeFile(t, "lines", strings.Repeat(line, 8))
	for n := 3; n <= 10; n++ { // the first two look for the job
		proxy.Set(redistest.Faults{Commands: []string{"evalsha", "eval"}, CutReply: n})
		stdout, stderr, code := runTool(t, env, "enqueue", "hello", "-c", config, "--args-lines", lines, "--id", fmt.Sprint(n, "-{line}"))
		if got := strings.Count(stdout, "hello#"); code != 0 || got != 8 {
			t.Errorf("script %d loses its reply: exit code %d, %d runs, %s; want 0 and 8 runs", n, code, got, stderr)
		}
	}
}
