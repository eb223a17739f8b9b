package cmd

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"lockstep/scheduler/admin"
)

func (t *tool) queueCommand() *cobra.Command {
	return group("queue", "Inspect queues, pause them", "The queues that bring runs to workers.",
		t.queueLsCommand(), t.queuePauseCommand(), t.queueResumeCommand())
}

func (t *tool) queueLsCommand() *cobra.Command {
	return list(t, &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the queues and their contents",
		Long: `List the queues of this Redis and their contents. DUE counts runs; IN is how many came over the last minute, and OUT
how many began, per minute. The other numbers count deliveries, which are the messages that bring due runs to a worker,
and tasks of plain asynq clients. Runs that are running or wait for a lock are in no queue: see lockstep run ls.`,
		Args: noArgs,
	}, queueView, func(ctx context.Context, conn *connection, _ []string, _ int) ([]admin.Queue, error) {
		return conn.reader.Queues(ctx)
	})
}

func queueView(now time.Time) view[admin.Queue] {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	return view[admin.Queue]{
		none: "no queues: no worker has served one yet",
		name: func(q admin.Queue) string { return q.Name },
		columns: []column[admin.Queue]{
			{title: "queue", cell: func(q admin.Queue) string { return q.Name }},
			{title: "namespace", cell: func(q admin.Queue) string { return string(q.Namespace) }},
			{title: "state", cell: func(q admin.Queue) string {
				if q.Paused {
					return "paused"
				}
				return "open"
			}},
			{title: "pending", cell: func(q admin.Queue) string { return count(q.Pending) }},
			{title: "active", cell: func(q admin.Queue) string { return count(q.Active) }},
			{title: "oldest", cell: func(q admin.Queue) string {
				if q.Pending == 0 {
					return ""
				}
				return admin.Age(time.Duration(q.Latency))
			}},
			{title: "due", cell: func(q admin.Queue) string { return strconv.Itoa(q.Due) }},
			{title: "in", cell: func(q admin.Queue) string { return admin.Rate(q.In) }},
			{title: "out", cell: func(q admin.Queue) string { return admin.Rate(q.Out) }},
			{title: "paused by", cell: func(q admin.Queue) string {
				return withAge(sum(": ", string(q.PausedBy), string(q.PausedWhy)), ago(now, q.PausedAt.Time))
			}},
			{title: "workers", wide: true, cell: func(q admin.Queue) string { return strconv.Itoa(q.Workers) }},
			{title: "scheduled", wide: true, cell: func(q admin.Queue) string { return count(q.Scheduled) }},
			{title: "retry", wide: true, cell: func(q admin.Queue) string { return count(q.Retry) }},
			{title: "archived", wide: true, cell: func(q admin.Queue) string { return count(q.Archived) }},
		},
	}
}
