package cmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

func (t *tool) workerCommand() *cobra.Command {
	return group("worker", "Inspect workers, drain them", "The replicas and their runs.",
		t.workerLsCommand(), t.workerShowCommand(), t.workerDrainCommand())
}

func (t *tool) workerLsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the workers",
		Long: `List the workers. --job and --lock find those that hold the lock, or run the job, now.`,
		Args: noArgs,
	}
	flags := filterFlags(cmd, admin.WorkerFilters, "ready", "draining", admin.Gone)
	return list(t, cmd, t.workerView, func(ctx context.Context, conn *connection, _ []string, _ int) ([]admin.Worker, error) {
		filter, err := flags.read(ctx, cmd, conn)
		if err != nil {
			return nil, err
		}
		snapshot, err := conn.reader.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		workers, err := filter.Workers(snapshot)
		return workers, misused(cmd, err)
	})
}

func (t *tool) workerView(now time.Time) view[admin.Worker] {
	return view[admin.Worker]{
		none: "no workers",
		name: func(w admin.Worker) string { return string(w.ID) },
		columns: []column[admin.Worker]{
			{title: "worker", cell: func(w admin.Worker) string { return string(w.ID) }},
			{title: "state", cell: func(w admin.Worker) string {
				if w.Drifted > 0 {
					return t.state(w.State) + ", " + t.state("drifted")
				}
				return t.state(w.State)
			}},
			{title: "busy", cell: func(w admin.Worker) string { return fmt.Sprintf("%d/%d", w.Busy, w.Slots) }},
			{title: "host", cell: func(w admin.Worker) string { return w.Host }},
			{title: "pid", cell: func(w admin.Worker) string { return strconv.Itoa(w.PID) }},
			{title: "started", cell: func(w admin.Worker) string { return ago(now, w.StartedAt.Time) }},
			{title: "lease", cell: func(w admin.Worker) string { return admin.Age(time.Duration(w.LeaseLeft)) }},
			{title: "queues", wide: true, cell: func(w admin.Worker) string { return weights(w.Queues) }},
			{title: "drifted", wide: true, cell: func(w admin.Worker) string { return strconv.Itoa(w.Drifted) }},
			{title: "version", wide: true, cell: func(w admin.Worker) string { return w.Version }},
			{title: "config", wide: true, cell: func(w admin.Worker) string { return w.Config }},
		},
	}
}

// weights formats queues as the flag --queues takes them, the heaviest first.
func weights(queues map[string]int) string {
	order := slices.SortedFunc(maps.Keys(queues), func(a, b string) int {
		if d := queues[b] - queues[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for i, name := range order {
		order[i] = fmt.Sprintf("%s=%d", name, queues[name])
	}
	return strings.Join(order, ",")
}

func (t *tool) workerShowCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "show WORKER", Short: "Show a worker and what it holds", Args: oneArg("a WORKER")}
	output := outputFlag(cmd, text, asJSON, asYAML)
	cmd.RunE = t.reads(func(ctx context.Context, conn *connection, args []string) error {
		worker, err := conn.worker(ctx, args[0])
		if err != nil {
			return err
		}
		if *output != text {
			return t.encode(*output, worker)
		}
		holds, err := conn.reader.Holds(ctx, worker.ID)
		if err != nil {
			return err
		}
		now, err := conn.now(ctx)
		if err != nil {
			return err
		}
		return t.showWorker(worker, holds, now)
	})
	return cmd
}

// worker returns a worker, or an error that suggests similar ones.
func (c *connection) worker(ctx context.Context, id string) (*admin.Worker, error) {
	worker, err := c.reader.Worker(ctx, locks.SessionID(id))
	if !errors.Is(err, ledger.ErrUnknown) {
		return worker, err
	}
	workers, err := c.reader.Workers(ctx)
	if err != nil {
		return nil, err
	}
	return nil, noWorker(id, workers)
}

func noWorker(id string, workers []admin.Worker) error {
	return unknown("worker", id, namesOf(workers, func(w admin.Worker) string { return string(w.ID) }))
}

func (t *tool) showWorker(w *admin.Worker, holds []admin.Holder, now time.Time) error {
	err := t.facts([]fact{
		{"worker", string(w.ID)},
		{"state", t.state(w.State)},
		{"host", w.Host},
		{"pid", strconv.Itoa(w.PID)},
		{"version", w.Version},
		{"config", w.Config},
		{"drifted", drifted(w.Drifted)},
		{"queues", weights(w.Queues)},
		{"busy", fmt.Sprintf("%d of %d slots", w.Busy, w.Slots)},
		{"started", withAge(w.StartedAt.String(), ago(now, w.StartedAt.Time))},
		{"lease", admin.Age(time.Duration(w.LeaseLeft)) + " left"},
	})
	if err != nil || len(holds) == 0 {
		return err
	}
	if err := t.write("\n"); err != nil {
		return err
	}
	return view[admin.Holder]{columns: []column[admin.Holder]{
		{title: "run", cell: func(h admin.Holder) string { return h.Purpose() }},
		{title: "locks", cell: func(h admin.Holder) string { return strings.Join(h.Locks(), " ") }},
		{title: "token", cell: func(h admin.Holder) string { return h.Token.String() }},
		{title: "held", cell: func(h admin.Holder) string { return admin.Age(time.Duration(h.Held)) }},
	}}.print(t, tables, holds)
}

// drifted describes how many jobs of a worker have another active definition; "" for none.
func drifted(n int) string {
	if n == 0 {
		return ""
	}
	return many(n, "job") + ": another definition is the active one"
}
