package locks_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// The test binary, started with these in its environment, is a process that holds "a" and reports
// on its standard output what happens to it. Every line begins with the time in ns.
const (
	holderURL       = "LOCKSTEP_LOCKS_TEST_HOLDER"
	holderNamespace = "LOCKSTEP_LOCKS_TEST_NAMESPACE"
)

func holderMain() int {
	say := func(what string, args ...any) {
		fmt.Printf("%d %s\n", time.Now().UnixNano(), fmt.Sprintf(what, args...))
	}
	ctx := context.Background() //nolint:forbidigo // the root of this process
	options, err := redis.ParseURL(os.Getenv(holderURL))
	if err != nil {
		say("error %v", err)
		return 1
	}
	rdb := redis.NewClient(options)
	defer func() { _ = rdb.Close() }()
	c, err := patientOpen(ctx, rdb, locks.Options{
		Namespace: os.Getenv(holderNamespace), Name: "holder", Lease: 2 * time.Second,
	})
	if err != nil {
		say("error %v", err)
		return 1
	}
	hold, err := c.Acquire(ctx, locks.Exclusive("a"))
	if err != nil {
		say("error %v", err)
		return 1
	}
	say("holds %s", hold.Token())
	for ticker := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-hold.Context().Done():
			ticker.Stop()
			say("ended %v", errors.Is(context.Cause(hold.Context()), locks.ErrLost))
			say("released %v", errors.Is(hold.Release(), locks.ErrLost))
			// A new session is opened automatically; the lock is requested again in it.
			again, err := c.Acquire(ctx, locks.Exclusive("a"))
			if err != nil {
				say("error %v", err)
				return 1
			}
			say("again %s", again.Token())
			if err := c.Close(ctx); err != nil {
				say("error %v", err)
			}
			return 0
		case <-ticker.C:
			say("works")
		}
	}
}

// holder is such a process.
type holder struct {
	t       *testing.T
	command *exec.Cmd
	lines   *bufio.Scanner
}

func startHolder(t *testing.T, server *redistest.Server, namespace string) *holder {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), holderURL+"="+server.URL(), holderNamespace+"="+namespace)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return &holder{t, command, bufio.NewScanner(out)}
}

// next returns the next line's time and words.
func (h *holder) next() (at time.Time, what, argument string) {
	h.t.Helper()
	if !h.lines.Scan() {
		h.t.Fatalf("the holder has ended: %v", h.lines.Err())
	}
	f := append(strings.Fields(h.lines.Text()), "", "", "")
	ns, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil || f[1] == "error" {
		h.t.Fatalf("the holder says %q", h.lines.Text())
	}
	return time.Unix(0, ns), f[1], f[2]
}

// upTo reads up to a line that is not "works", and returns the time of the last one that was.
func (h *holder) upTo(what string) (at, worked time.Time, argument string) {
	h.t.Helper()
	for {
		at, got, argument := h.next()
		if got == "works" {
			worked = at
			continue
		}
		if got != what {
			h.t.Fatalf("the holder says %q, want %q", h.lines.Text(), what)
		}
		return at, worked, argument
	}
}

func parseToken(t *testing.T, text string) locks.Token {
	t.Helper()
	token, err := locks.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestKilledHoldersLockPassesOn kills a process that holds a lock, while no client but a waiter
// calls.
func TestKilledHoldersLockPassesOn(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	ns := redistest.Namespace(t)
	h := startHolder(t, server, ns)
	_, _, token := h.upTo("holds")
	// A long lease: this client's own renewals are too rare to explain the time.
	c := openClient(t, server.Client(t), locks.Options{Namespace: ns, Lease: time.Minute})
	granted := make(chan *locks.Hold, 1)
	go func() {
		defer close(granted)
		hold, err := c.Acquire(within(t, patient), locks.Exclusive("a"))
		if err != nil {
			t.Error(err)
			return
		}
		granted <- hold
	}()
	eventually(t, "it waits", func() bool { return len(waits(t, c)) == 1 })
	killed := time.Now()
	if err := h.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	hold := <-granted
	if hold == nil {
		t.FailNow()
	}
	if took := time.Since(killed); took > 2*time.Second+5*time.Second {
		t.Errorf("granted %s after the kill, want at most the lease and five seconds", took)
	}
	if hold.Token() <= parseToken(t, token) {
		t.Errorf("got token %s after %s", hold.Token(), token)
	}
}

// TestStoppedHolderLosesItsLock stops a process for longer than its lease. When it resumes, it must
// notice at once.
func TestStoppedHolderLosesItsLock(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	ns := redistest.Namespace(t)
	h := startHolder(t, server, ns)
	_, _, first := h.upTo("holds")
	if err := h.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c := openClient(t, server.Client(t), locks.Options{Namespace: ns})
	hold := acquire(t, c, locks.Exclusive("a"))
	if hold.Token() <= parseToken(t, first) {
		t.Errorf("got token %s after %s", hold.Token(), first)
	}
	resumed := time.Now()
	if err := h.command.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	at, worked, lost := h.upTo("ended")
	if lost != "true" {
		t.Errorf("the cause is not ErrLost")
	}
	if late := at.Sub(resumed); late > 3*time.Second { // 100 ms, and a busy machine
		t.Errorf("noticed %s after it continued", late)
	}
	t.Logf("worked on for %s", worked.Sub(resumed))
	if _, _, lost := h.upTo("released"); lost != "true" {
		t.Error("Release of the lost hold does not say ErrLost")
	}
	if hold.Context().Err() != nil {
		t.Error("the new hold ended when the old one was released")
	}
	release(t, hold)
	if _, _, again := h.upTo("again"); parseToken(t, again) <= hold.Token() {
		t.Errorf("got token %s after %s", again, hold.Token())
	}
}
