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

// queueLine is a queue in JSON. The numbers count deliveries and tasks of plain asynq clients.
type queueLine struct {
	Queue     string        `json:"queue"`
	Namespace admin.Text    `json:"namespace"` // null when no lockstep worker has served it
	Paused    bool          `json:"paused"`
	Pending   int64         `json:"pending"`
	Active    int64         `json:"active"`
	Scheduled int64         `json:"scheduled"`
	Retry     int64         `json:"retry"`
	Archived  int64         `json:"archived"`
	Latency   admin.Seconds `json:"latency_seconds"` // how long the oldest pending one has waited
}

func (t *tool) queueLsCommand() *cobra.Command {
	return list(t, &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the queues and their contents",
		Long: `List the queues of this Redis and their contents. The numbers count deliveries, which are the messages that bring
due runs to a worker, and tasks of plain asynq clients. Runs that are running or wait for a lock are in no queue:
see lockstep run ls.`,
		Args: noArgs,
	}, queueView, func(ctx context.Context, conn *connection, _ []string, _ int) ([]queueLine, error) {
		infos, err := conn.queue.Queues(ctx)
		lines := make([]queueLine, len(infos))
		for i, info := range infos {
			lines[i] = queueLine{
				Queue: info.Name, Namespace: admin.Text(info.Namespace), Paused: info.Paused, Pending: info.Pending, Active: info.Active,
				Scheduled: info.Scheduled, Retry: info.Retry, Archived: info.Archived, Latency: admin.Seconds(info.Latency),
			}
		}
		return lines, err
	})
}

func queueView(time.Time) view[queueLine] {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	return view[queueLine]{
		none: "no queues: no worker has served one yet",
		name: func(q queueLine) string { return q.Queue },
		columns: []column[queueLine]{
			{title: "queue", cell: func(q queueLine) string { return q.Queue }},
			{title: "namespace", cell: func(q queueLine) string { return string(q.Namespace) }},
			{title: "state", cell: func(q queueLine) string {
				if q.Paused {
					return "paused"
				}
				return "open"
			}},
			{title: "pending", cell: func(q queueLine) string { return count(q.Pending) }},
			{title: "active", cell: func(q queueLine) string { return count(q.Active) }},
			{title: "oldest", cell: func(q queueLine) string {
				if q.Pending == 0 {
					return ""
				}
				return admin.Age(time.Duration(q.Latency))
			}},
			{title: "scheduled", wide: true, cell: func(q queueLine) string { return count(q.Scheduled) }},
			{title: "retry", wide: true, cell: func(q queueLine) string { return count(q.Retry) }},
			{title: "archived", wide: true, cell: func(q queueLine) string { return count(q.Archived) }},
		},
	}
}
