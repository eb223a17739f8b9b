package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lockstep/cmd/internal/asguard"
	"lockstep/jobs"
	"lockstep/jobs/command"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// together is how many commands are due at once.
const together = 20

// measureCommands measures how much later commands start as runs than without lockstep, when many
// are due at once: each run is delivered, claimed, and has a guard.
func measureCommands(ctx context.Context, set settings, r *result) (err error) {
	_, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	folder, err := os.MkdirTemp("", "lockstep-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := settleSpace(ctx, rdb); err != nil {
		return err
	}
	self, err := command.Self()
	if err != nil {
		return err
	}
	guarded, err := command.New(command.Options{Guard: []string{self, asguard.Word}})
	if err != nil {
		return err
	}
	job := beat()
	job.Name, job.Every, job.Args = "starts", 30*24*time.Hour, nil
	// each command appends the time at which it runs, in Unix nanoseconds
	file := filepath.Join(folder, "starts")
	job.Command, job.Handler = []string{"sh", "-c", `date +%s%N >> "$0"`, file}, ""
	_, end, err := beginWith(ctx, rdb, []*jobs.Job{job}, map[string]jobs.Executor{"command": guarded})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if !pause(ctx, 2*time.Second) { // it registers its job, and takes duty
		return context.Cause(ctx)
	}
	records, deliveries, err := parts(rdb)
	if err != nil {
		return err
	}
	guard, err := guardCost(ctx, guarded)
	if err != nil {
		return err
	}
	var all [2][]float64
	for round := range set.rounds {
		set.step("commands, round %d of %d", round+1, set.rounds)
		for i, start := range []func() error{
			func() error { return startBare(ctx, job.Command) },
			func() error { return startRuns(ctx, records, worker.NewPusher(deliveries, records), job, round) },
		} {
			late, err := startsOf(ctx, file, start)
			if err != nil {
				return err
			}
			all[i] = append(all[i], late)
		}
	}
	bare, ours := median(all[0]), median(all[1])
	r.note("medians of %d rounds of %d commands; a command is sh, which starts date", set.rounds, together)
	r.Columns = []string{"commands", "median start, ms"}
	r.row("bare", bare)
	r.row("runs", ours)
	r.atMost(50, ours-bare, "ms that the median start of %d runs is later than that of bare commands", together)
	r.atMost(4, guard, "ms of CPU time that a guard takes")
	return nil
}

// guardCost returns the CPU time of a guard, in ms: that of a command with its guard, less that of
// the command alone. The two take turns, and the minimum of many counts, because other processes
// only add to it.
func guardCost(ctx context.Context, guarded *command.Executor) (float64, error) {
	argv := []string{"true"}
	var least [2]float64
	for range 50 {
		for i, start := range []func() error{
			exec.CommandContext(ctx, argv[0]).Run,
			func() error { return guarded.Run(ctx, command.Spec{Argv: argv}) },
		} {
			before, err := childrenTime()
			if err != nil {
				return 0, err
			}
			if err := start(); err != nil {
				return 0, err
			}
			after, err := childrenTime()
			if err != nil {
				return 0, err
			}
			if took := ms(after - before); least[i] == 0 || took < least[i] {
				least[i] = took
			}
		}
	}
	return least[1] - least[0], nil
}

// childrenTime returns the CPU time of all processes that this one has waited for, and of those
// that they have waited for.
func childrenTime() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

// startsOf returns the median time, in ms, from a call of start until the commands run that it
// starts.
func startsOf(ctx context.Context, file string, start func() error) (float64, error) {
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return 0, err
	}
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	if err := start(); err != nil {
		return 0, err
	}
	var late []float64
	err := until(limit, func() (bool, error) {
		text, err := os.ReadFile(file)
		lines := strings.Fields(string(text))
		if err != nil || len(lines) < together {
			return false, err
		}
		for _, line := range lines {
			at, err := strconv.ParseInt(line, 10, 64)
			if err != nil {
				return false, err
			}
			late = append(late, ms(time.Unix(0, at).Sub(began)))
		}
		return true, nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait for %d commands: %w", together, err)
	}
	return median(late), nil
}

// startBare runs the commands without lockstep.
func startBare(ctx context.Context, argv []string) error {
	var commands []*exec.Cmd
	for range together {
		one := exec.CommandContext(ctx, argv[0], argv[1:]...)
		if err := one.Start(); err != nil {
			return err
		}
		commands = append(commands, one)
	}
	var errs []error
	for _, one := range commands {
		errs = append(errs, one.Wait())
	}
	return errors.Join(errs...)
}

// startRuns requests the commands as runs.
func startRuns(ctx context.Context, records *ledger.Ledger, pusher *worker.Pusher, job *jobs.Job, round int) error {
	var list ledger.List
	for i := range together {
		list.Items = append(list.Items, ledger.Request{Job: job, ID: fmt.Sprint(round, "-", i), Trigger: ledger.TriggerEnqueue})
	}
	return askList(ctx, records, pusher, list)
}
