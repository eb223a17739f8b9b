package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"lockstep/jobs"
)

// moreWorkers is how many idle workers are added to the first one, which has duty.
const moreWorkers = 4

// measureCapacityIdle measures what workers without work cost Redis.
func measureCapacityIdle(ctx context.Context, set settings, r *result) (err error) {
	d := 10 * time.Second
	if set.short {
		d = time.Second
	}
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := settleSpace(ctx, rdb); err != nil {
		return err
	}
	list := make([]*jobs.Job, 20)
	for i := range list {
		list[i] = beat()
		list[i].Name, list[i].Every = fmt.Sprint("job", i), 30*24*time.Hour
	}
	var ends []func() error
	defer func() {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
	}()
	var figures [][3]float64
	for _, n := range []int{1, 1 + moreWorkers} {
		set.step("capacity-idle: %d workers", n)
		for len(ends) < n {
			_, end, err := begin(ctx, rdb, list, func() {})
			if err != nil {
				return err
			}
			ends = append(ends, end)
		}
		if !pause(ctx, 3*time.Second) { // they register their jobs, and one takes duty
			return context.Cause(ctx)
		}
		one, err := s.idle(ctx, d)
		if err != nil {
			return err
		}
		figures = append(figures, one)
	}
	r.markdown = true
	r.note("over %s; one queue, %d jobs without ticks in that time, a lease of 15 s", d, len(list))
	r.Columns = []string{"an idle worker", "commands/s sent", "commands/s inside scripts", "µs/s of Redis' core"}
	each := func(i int) float64 { return (figures[1][i] - figures[0][i]) / moreWorkers }
	r.row("the one on duty", figures[0][0], figures[0][1], figures[0][2])
	r.row("each other one", each(0), each(1), each(2))
	r.atMost(6, each(0), "sent commands/s of an idle worker that is not on duty")
	return nil
}

// idle returns, for each second, the commands that clients send, those inside scripts, and the µs
// of Redis' main thread. MONITOR costs Redis some time, so it comes after the rest.
func (s *server) idle(ctx context.Context, d time.Duration) (figures [3]float64, err error) {
	began := time.Now()
	before, err := s.usage(ctx)
	if err != nil {
		return figures, err
	}
	pause(ctx, d)
	after, err := s.usage(ctx)
	if err != nil {
		return figures, err
	}
	work, took := after.since(before), time.Since(began).Seconds()
	sent, err := s.sent(ctx, d)
	if err != nil {
		return figures, err
	}
	return [3]float64{sent, work.commands()/took - sent, work.cpu / took}, nil
}

// sent returns how many commands clients send to the server in a second. Those inside scripts are
// none of them.
func (s *server) sent(ctx context.Context, d time.Duration) (float64, error) {
	o := s.process.RedisOptions()
	conn, err := new(net.Dialer).DialContext(ctx, o.Network, o.Addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(d)); err != nil {
		return 0, err
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return 0, err
	}
	sent := 0.0
	for lines := bufio.NewScanner(conn); ; {
		if !lines.Scan() {
			if err := lines.Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
				return 0, fmt.Errorf("MONITOR ended: %w", err)
			}
			return sent / d.Seconds(), nil
		}
		// +1795222978.000042 [0 127.0.0.1:40123] "evalsha" ..., or [0 lua] inside a script
		if line := lines.Text(); strings.Contains(line, "] ") && !strings.Contains(line, " lua] ") {
			sent++
		}
	}
}
