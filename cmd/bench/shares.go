package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	equals = 10               // waiters that share a resource
	work   = time.Millisecond // how long each holds it
)

func measureShares(ctx context.Context, set settings, r *result) error {
	d := 8 * set.turn
	r.note("one turn of %s each; deviation: the farthest from a tenth, in percent of a tenth", d)
	r.Columns = []string{"waiters", "library", "grants/s", "most", "least", "deviation %"}
	for _, among := range []struct {
		what  string
		share func(context.Context, *server, peer, time.Duration) ([]float64, error)
	}{{"goroutines", amongGoroutines}, {"processes", amongProcesses}} {
		for _, p := range peers {
			set.step("ten %s, %s", among.what, p.name)
			served, err := sharesOf(ctx, p, d, among.share)
			if err != nil {
				return fmt.Errorf("%s among %s: %w", p.name, among.what, err)
			}
			var sum float64
			for _, n := range served {
				sum += n
			}
			r.row(among.what, p.name, sum/d.Seconds(), int(slices.Max(served)), int(slices.Min(served)), deviation(served))
			if p.name == ours {
				r.atMost(10, deviation(served), "deviation from an equal share among %s, %%", among.what)
			}
		}
	}
	return nil
}

// sharesOf measures on its own server: waiters of the last library must not block the next one.
func sharesOf(
	ctx context.Context, p peer, d time.Duration,
	share func(context.Context, *server, peer, time.Duration) ([]float64, error),
) ([]float64, error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	return share(ctx, s, p, d)
}

// deviation returns how far the farthest value is from the mean, in percent of the mean.
func deviation(values []float64) float64 {
	var sum, farthest float64
	for _, v := range values {
		sum += v
	}
	mean := sum / float64(len(values))
	for _, v := range values {
		farthest = max(farthest, math.Abs(v-mean))
	}
	return 100 * farthest / mean
}

func amongGoroutines(ctx context.Context, s *server, p peer, d time.Duration) ([]float64, error) {
	l, err := p.shared(ctx, s.addr, lease)
	if err != nil {
		return nil, err
	}
	one, err := take(ctx, s, l, everybody(equals, work), d)
	return one.served, errors.Join(err, l.close(context.WithoutCancel(ctx)))
}

// contendCommand makes this program act as one of several processes that request the same resource;
// see contend.
const contendCommand = "contend"

// amongProcesses starts this program several times. All of them begin when the last one is ready.
func amongProcesses(ctx context.Context, s *server, p peer, d time.Duration) ([]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	served := make([]float64, equals)
	ready := make(chan struct{}, equals)
	begin := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	for i := range served {
		group.Go(func() error {
			child := exec.CommandContext(ctx, self, contendCommand, p.name, s.addr, d.String())
			child.Stderr = os.Stderr
			child.WaitDelay = time.Second
			stdin, err := child.StdinPipe()
			if err != nil {
				return err
			}
			stdout, err := child.StdoutPipe()
			if err != nil {
				return err
			}
			if err := child.Start(); err != nil {
				return err
			}
			n, err := converse(ctx, bufio.NewReader(stdout), stdin, ready, begin)
			served[i] = n
			return errors.Join(err, child.Wait())
		})
	}
	group.Go(func() error {
		defer close(begin)
		for range served {
			select {
			case <-ready:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	return served, group.Wait()
}

// converse is the other end of contend.
func converse(
	ctx context.Context, from *bufio.Reader, to io.WriteCloser, ready chan<- struct{}, begin <-chan struct{},
) (float64, error) {
	defer to.Close() // ends a child that still waits for its line
	if _, err := from.ReadString('\n'); err != nil {
		return 0, fmt.Errorf("a process did not get ready: %w", err)
	}
	ready <- struct{}{} // it has room for all
	<-begin
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	if _, err := io.WriteString(to, "begin\n"); err != nil {
		return 0, err
	}
	line, err := from.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("a process did not report its count: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}

// contend is the whole life of one process among several. It reports that it is ready, waits for a
// line, requests the resource again and again for some time, and prints how often it got it.
func contend(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 3 {
		return errors.New("want: contend LIBRARY ADDRESS DURATION")
	}
	p, err := peerOf(args[0])
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	l, err := p.open(ctx, args[1], lease)
	if err != nil {
		return err
	}
	defer l.close(context.WithoutCancel(ctx))
	// The first lock makes the connection.
	if got, err := l.lock(ctx, fmt.Sprintf("warm-%d", os.Getpid())); err != nil {
		return err
	} else if err := got.unlock(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "ready")
	if _, err := bufio.NewReader(stdin).ReadString('\n'); err != nil {
		return nil // the parent has exited
	}
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	grants := 0
	for {
		got, err := l.lock(limited, "the-one")
		if err != nil && limited.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		grants++
		pause(limited, work)
		if err := got.unlock(); err != nil {
			return err
		}
		if limited.Err() != nil {
			break
		}
	}
	_, err = fmt.Fprintln(stdout, grants)
	return err
}
