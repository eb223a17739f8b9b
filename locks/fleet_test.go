package locks_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// The test binary, started with these in its environment, is a process of actors. They act until
// its standard input ends, and it writes its journal to its standard output.
const (
	fleetURL       = "LOCKSTEP_LOCKS_TEST_FLEET"
	fleetNamespace = "LOCKSTEP_LOCKS_TEST_FLEET_NAMESPACE"
	fleetWho       = "LOCKSTEP_LOCKS_TEST_FLEET_WHO"
)

func fleetMain() int {
	redis.SetLogger(quiet{}) // it has an entry for each failed dial
	who, _ := strconv.Atoi(os.Getenv(fleetWho))
	j := &journal{who: who, out: os.Stdout}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // the root of this process
	defer cancel()
	options, err := redis.ParseURL(os.Getenv(fleetURL))
	if err != nil {
		j.fault("process %d: %v", who, err)
		return 1
	}
	rdb := redis.NewClient(options)
	defer func() { _ = rdb.Close() }()
	var c *locks.Client
	for ctx.Err() == nil { // the network may be silent
		c, err = locks.Open(ctx, rdb, locks.Options{
			Namespace: os.Getenv(fleetNamespace), Name: fmt.Sprint("fleet", who), Lease: stormLease,
		})
		if err == nil {
			break
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var actors cast
	for i := range 4 {
		actors = append(actors, &actor{
			client: c, journal: j, rand: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(i))), depth: 2, limits: true, loses: true,
		})
	}
	actors.act(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stormLease)
	defer cancel()
	if err := c.Close(closing); err != nil {
		j.tell(entry{Note: err.Error()})
	}
	return 0
}

// quiet is a logger that discards everything.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// ship is one such process.
type ship struct {
	who     int
	command *exec.Cmd
	input   io.Closer
	read    sync.WaitGroup // its output, to the end
	held    chan struct{}  // closed when it has held a lock
}

// launch starts a process with a journal that becomes part of j.
func launch(t *testing.T, who int, url, namespace string, j *journal) *ship {
	t.Helper()
	s := &ship{who: who, command: exec.CommandContext(t.Context(), os.Args[0]), held: make(chan struct{})}
	s.command.Env = append(os.Environ(), fleetURL+"="+url, fleetNamespace+"="+namespace, fleetWho+"="+strconv.Itoa(who))
	s.command.Stderr = os.Stderr
	in, err := s.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.input = in
	out, err := s.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	s.read.Go(func() {
		known := make(map[int]*claim)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var l entry
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				continue // half an entry: the process was killed
			}
			first := l.Claim != nil && len(known) == 0
			j.adopt(l, known)
			if first {
				close(s.held)
			}
		}
	})
	return s
}

// kill ends the process without notice.
func (s *ship) kill() {
	_ = s.command.Process.Kill()
	s.read.Wait()
	_ = s.command.Wait()
}

// land ends the process in order.
func (s *ship) land(t *testing.T) {
	t.Helper()
	_ = s.input.Close()
	overdue := time.AfterFunc(2*hangs, func() { _ = s.command.Process.Kill() })
	defer overdue.Stop()
	s.read.Wait()
	if err := s.command.Wait(); err != nil {
		t.Errorf("process %d: %v", s.who, err)
	}
}

// stop stops the process for a while. It records the pause if, together with a preceding silence,
// the lease may run out meanwhile.
func (s *ship) stop(t *testing.T, j *journal, d time.Duration) {
	t.Helper()
	from := stamp()
	if err := s.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Error(err)
	}
	time.Sleep(d)
	if err := s.command.Process.Signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	if d >= stormLease/10 { // less than the cutoff: a busy machine adds to it
		j.mu.Lock()
		j.pauses = append(j.pauses, pause{s.who, from, stamp()})
		j.mu.Unlock()
	}
}

// TestNoOverlapAmongProcesses has real processes take bundles like the goroutines of a storm, each
// behind a bad network, while they are stopped, killed and started again. Each of them holds a lock
// before that: on a busy machine a process needs seconds to begin.
func TestNoOverlapAmongProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	ns := redistest.Namespace(t)
	j := newJournal()
	healthy := openClient(t, server.Client(t), locks.Options{Namespace: ns, Name: "healthy"})
	declarePool(t, healthy)
	var proxies [3]*redistest.Proxy
	var ships [3]*ship
	for i := range ships {
		proxies[i] = server.Proxy(t)
		ships[i] = launch(t, i, proxies[i].URL(), ns, j)
	}
	for _, s := range ships {
		select {
		case <-s.held:
		case <-time.After(patient):
			t.Fatalf("process %d has not held a lock after %s", s.who, patient)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), span(6*time.Second))
	defer cancel()
	var running sync.WaitGroup
	var kills, stops [3]int
	seed := uint64(time.Now().UnixNano())
	for i, s := range ships {
		p, who := proxies[i], i
		weather := weather["all"]
		weather.Repeat, weather.Resend = 0.02, 0
		running.Go(func() { storm(ctx, p, rand.New(rand.NewPCG(seed, uint64(i))), weather, stormLease) })
		random := rand.New(rand.NewPCG(seed, uint64(i+10)))
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
				case <-s.held:
				}
				select {
				case <-ctx.Done():
					s.land(t)
					return
				case <-time.After(time.Duration(500+random.IntN(1500)) * time.Millisecond):
				}
				if random.IntN(3) == 0 {
					s.kill()
					kills[i]++
					who += 3
					s = launch(t, who, p.URL(), ns, j)
				} else {
					s.stop(t, j, time.Duration(random.Int64N(int64(stormLease*4/3))))
					stops[i]++
				}
			}
		})
	}
	running.Wait()
	took := emptied(t, healthy)
	t.Logf("seed %d: killed %v, stopped %v; all was given back %s after the last one had ended", seed, kills, stops, took.Round(time.Millisecond))
	j.verify(t)
}
