package cmd

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/scheduler/admin"
)

const (
	// completeLimit is how long a shell waits for names from Redis.
	completeLimit = 2 * time.Second
	completeRuns  = 200 // the newest ones; a shell shows no more anyway
)

// completions maps the placeholder of an argument to the function that lists the names for it.
var completions = map[string]func(ctx context.Context, conn *connection) ([]string, error){
	"JOB": func(ctx context.Context, conn *connection) ([]string, error) { return conn.jobNames(ctx) },
	"RUN": func(ctx context.Context, conn *connection) ([]string, error) {
		list, err := conn.reader.Runs(ctx, admin.RunFilter{Limit: completeRuns})
		return namesOf(list, func(run admin.Run) string { return string(run.ID) }), err
	},
	"LOCK": func(ctx context.Context, conn *connection) ([]string, error) {
		list, err := conn.reader.Locks(ctx)
		return namesOf(list, func(lock admin.Lock) string { return lock.Name }), err
	},
	"WORKER": func(ctx context.Context, conn *connection) ([]string, error) {
		list, err := conn.reader.Workers(ctx)
		return namesOf(list, func(worker admin.Worker) string { return string(worker.ID) }), err
	},
	"QUEUE": func(ctx context.Context, conn *connection) ([]string, error) {
		list, err := conn.reader.Queues(ctx)
		return namesOf(list, func(queue admin.Queue) string { return queue.Name }), err
	},
}

// completeNames makes each command below root complete the names that its first argument takes: its
// Use has the placeholder, as in "show JOB".
func (t *tool) completeNames(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		t.completeNames(cmd)
		if list, many := completionOf(cmd); list != nil {
			cmd.ValidArgsFunction = t.complete(list, many)
		}
	}
}

// completionOf returns the function that lists the names for a command, or nil, and whether it
// takes more than one of them.
func completionOf(cmd *cobra.Command) (list func(context.Context, *connection) ([]string, error), many bool) {
	words := strings.Fields(cmd.Use)
	if len(words) < 2 {
		return nil, false
	}
	placeholder, many := strings.CutSuffix(strings.Trim(words[1], "[]"), "...")
	placeholder, _, _ = strings.Cut(placeholder, "|") // JOB|RUN
	return completions[placeholder], many
}

// complete returns a completion by names from Redis. A shell prints what a completion writes in the
// middle of the command line, so an error, such as an unreachable Redis, means no names.
func (t *tool) complete(list func(context.Context, *connection) ([]string, error), many bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !many {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
		defer cancel()
		cmd.SetContext(ctx)
		stderr := t.stderr
		t.stderr = io.Discard
		defer func() { t.stderr = stderr }()
		conn, err := t.connect(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer func() { _ = conn.Close() }() // it was only read
		names, err := list(ctx, conn)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) || slices.Contains(args, name) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
