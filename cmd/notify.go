package cmd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/notify"
)

// notifyClient returns a client that replaces ${...} by what this process has.
func notifyClient() *notify.Client {
	return notify.NewClient(func(text string) (string, []jobs.Secret, error) {
		return configs.ExpandText(text, os.LookupEnv)
	}, configs.ReadSecret)
}

// sourceOf names the namespace in events.
func sourceOf(settings configs.Settings) string { return "lockstep/" + settings.Redis.Namespace }

// targetsOf returns the targets of a config for a sender.
func targetsOf(config *configs.Config) []notify.Target {
	targets := make([]notify.Target, len(config.Targets))
	for i, t := range config.Targets {
		targets[i] = notify.Target(t)
	}
	return targets
}

// pinging adds the pings of a job to what receives the attempts of a worker.
func pinging(next func(*ledger.Claimed) func(*ledger.Finished), pinger *notify.Pinger) func(*ledger.Claimed) func(*ledger.Finished) {
	return func(claimed *ledger.Claimed) func(*ledger.Finished) {
		ended, job := next(claimed), claimed.Job
		if job.Ping == "" {
			return ended
		}
		pinger.Ping(job.Name, job.Ping, notify.SignalStart, "")
		return func(finished *ledger.Finished) {
			ended(finished)
			switch {
			case finished == nil:
			case finished.State == ledger.StateSucceeded:
				pinger.Ping(job.Name, job.Ping, notify.SignalSuccess, "")
			case finished.State == ledger.StateFailed || finished.State == ledger.StateLost:
				pinger.Ping(job.Name, job.Ping, notify.SignalFail, fmt.Sprintf("%s is %s", claimed.Record.ID, finished.State))
			}
		}
	}
}

func (t *tool) notifyCommand() *cobra.Command {
	return group("notify", "Inspect the targets of messages, try them",
		"Targets of messages about jobs: webhooks and services, which the key notify of a config declares.",
		t.notifyLsCommand(), t.notifyTestCommand())
}

// notified is one line of notify ls.
type notified struct {
	Target string `json:"target"`
	// webhook, or the service; null: this config does not declare it
	Kind     admin.Text    `json:"kind"`
	Address  admin.Text    `json:"address"` // without secrets
	On       []jobs.Event  `json:"on"`
	Waiting  int           `json:"waiting"`
	Since    admin.Instant `json:"waiting_since"`
	Next     admin.Instant `json:"next_request_at"`
	Tries    int           `json:"failed_requests"` // for what waits first
	Sent     int           `json:"sent"`
	Unsent   int           `json:"unsent"`
	Dropped  int           `json:"dropped"`
	FailedAt admin.Instant `json:"failed_at"`
	Error    admin.Text    `json:"error"`
}

func (t *tool) notifyLsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the targets, and the messages that wait or could not be sent",
		Long: `List the targets of this config, and others for which messages wait. WAITING counts messages, and UNSENT those that
could not be sent for a day: lockstep audit lists them. Secrets are hidden.`,
		Args: noArgs,
	}
	return list(t, cmd, notifyView, func(ctx context.Context, conn *connection, _ []string, _ int) ([]notified, error) {
		config, err := t.targets(cmd)
		if err != nil {
			return nil, err
		}
		targets := config.Targets
		var names []string
		for _, target := range targets {
			names = append(names, target.Name)
		}
		mail, err := conn.ledger.Mail(ctx, names)
		if err != nil {
			return nil, err
		}
		all := make([]notified, len(mail))
		for i, m := range mail {
			all[i] = notified{Target: m.Target, On: []jobs.Event{}, Waiting: m.Waiting, Since: admin.Instant{Time: m.Since}, Next: admin.Instant{Time: m.Next},
				Tries: m.Tries, Sent: m.Sent, Unsent: m.Unsent, Dropped: m.Dropped, FailedAt: admin.Instant{Time: m.Failed}, Error: admin.Text(m.Error)}
			if i < len(targets) { // these come first, in their order
				target := notify.Target(targets[i])
				all[i].Kind, all[i].Address, all[i].On = admin.Text(target.Kind()), admin.Text(target.Address()), target.On
			}
		}
		return all, nil
	})
}

func notifyView(now time.Time) view[notified] {
	return view[notified]{
		none: "no targets: declare them under notify in a config",
		name: func(n notified) string { return n.Target },
		columns: []column[notified]{
			{title: "target", cell: func(n notified) string { return n.Target }},
			{title: "address", cell: func(n notified) string {
				if n.Kind == "" {
					return "(not in this config)"
				}
				return string(n.Address)
			}},
			{title: "on", cell: func(n notified) string { return eventWords(n.On) }},
			{title: "waiting", cell: func(n notified) string { return withAge(strconv.Itoa(n.Waiting), ago(now, n.Since.Time)) }},
			{title: "sent", cell: func(n notified) string { return strconv.Itoa(n.Sent) }},
			{title: "unsent", cell: func(n notified) string { return strconv.Itoa(n.Unsent) }},
			{title: "dropped", cell: func(n notified) string { return strconv.Itoa(n.Dropped) }},
			{title: "last error", cell: func(n notified) string { return withAge(string(n.Error), ago(now, n.FailedAt.Time)) }},
		},
	}
}

// eventWords lists events.
func eventWords(on []jobs.Event) string {
	words := make([]string, len(on))
	for i, event := range on {
		words[i] = string(event)
	}
	return strings.Join(words, " ")
}

// targets returns the settings and the targets of the config, which need not have valid jobs.
func (t *tool) targets(cmd *cobra.Command) (*configs.Config, error) {
	options := t.loadOptions(cmd, configs.Find(t.configPaths, nil))
	options.SettingsOnly, options.Targets = true, true
	return t.told(readConfig(options))
}

func (t *tool) notifyTestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test TARGET",
		Short: "Send a test message now, and print the reply",
		Long: `Send a test message to a target of this config, from this host, and print the reply. Nothing is stored, and Redis is
not needed. Exits with 1 if the message could not be sent.`,
		Example: `  lockstep notify test ops`,
		Args:    oneArg("a TARGET"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		config, err := t.targets(cmd)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(config.Targets, func(target configs.Target) bool { return target.Name == args[0] })
		if i < 0 {
			names := make([]string, len(config.Targets))
			for k, target := range config.Targets {
				names[k] = target.Name
			}
			return refuse("no target %q in this config; it has: %s", args[0], strings.Join(names, " "))
		}
		client := notifyClient()
		defer client.Close()
		target, began := notify.Target(config.Targets[i]), time.Now()
		reply, err := client.Test(cmd.Context(), target, sourceOf(config.Settings), began)
		if err != nil {
			return fmt.Errorf("target %s (%s): %w", target.Name, target.Address(), err)
		}
		said := "it accepted the message"
		if reply.Status != 0 {
			said = fmt.Sprintf("it replied with status %d", reply.Status)
		}
		if reply.Text != "" {
			said += ": " + strings.TrimSpace(reply.Text)
		}
		return t.write(fmt.Sprintf("sent to %s (%s) in %s; %s\n", target.Name, target.Address(), time.Since(began).Round(time.Millisecond), said))
	}
	return cmd
}
