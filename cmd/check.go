package cmd

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/scheduler"
	"lockstep/scheduler/admin/web"
	"lockstep/scheduler/cronspec"
)

// asGitHub prints problems as workflow commands, with which GitHub annotates the lines of a pull
// request.
const asGitHub format = "github"

func (t *tool) checkCommand() *cobra.Command {
	var strict bool
	var next int
	cmd := &cobra.Command{
		Use:   "check [PATH...]",
		Short: "Check config files",
		Long: `Check the given config files and folders, or else the config that a worker would use. Report all errors and warnings
of all files in one pass, with the place and the remedy, and the http jobs that get the default timeout of one hour
because nothing sets one. Redis is not contacted.

Exits with 3 if there are errors; warnings alone exit with 0, unless --strict turns them into errors.`,
		Example: `  lockstep check --strict conf.d
  lockstep check --next 3
  lockstep check -o github`,
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors")
	cmd.Flags().IntVar(&next, "next", 0, "list the next `N` times of each job, local and in UTC")
	output := outputFlag(cmd, text, asJSON, asGitHub)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if next < 0 {
			return misuse(cmd, "--next %d is negative", next)
		}
		paths := configs.Find(append(t.configPaths, args...), nil)
		if len(paths) == 0 {
			return refuse("no config to check: name a file or folder, set LOCKSTEP_CONFIG, or write ./lockstep.yaml")
		}
		options := t.loadOptions(cmd, paths)
		options.Handlers, options.Rights = t.handlers.Names(), true
		config, err := readConfig(options)
		var problems configs.Problems
		switch {
		case errors.As(err, &problems):
		case err != nil:
			return err
		default:
			problems = config.Warnings
			problems.List = slices.Concat(problems.List, doubtfulUsers(config))
		}
		if strict {
			problems = problems.Strict()
		}
		report := checkReport{Problems: problems}
		if config != nil {
			report.timeouts = config.HTTPTimeouts
			report.next, err = upcoming(config.Jobs, time.Now(), next)
		} else {
			err = nil
		}
		if err == nil {
			// the problems are the output that the user asked for, not a failure
			err = t.printCheck(*output, report)
		}
		if problems.Errors() > 0 {
			err = errors.Join(err, exit(exitConfig, nil))
		}
		return err
	}
	return cmd
}

// doubtfulUsers warns of hashes in admin.auth.users_file that are cheap to brute-force, and of
// users without a role. It ignores a file that this host does not have: the file may belong to
// another host.
func doubtfulUsers(config *configs.Config) []configs.Problem {
	signIn, err := newSignIn(config.Settings.Admin, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	var problems []configs.Problem
	add := func(code, warning string) {
		if warning != "" {
			problems = append(problems, configs.Problem{
				Origin: config.Origins["admin.auth.users_file"], Severity: configs.SeverityWarning, Code: code, Message: warning,
			})
		}
	}
	weak, unroled := signIn.Warnings()
	add(configs.CodeWeakHash, weak)
	add(configs.CodeNoRole, unroled)
	return problems
}

// checkReport is the output of check.
type checkReport struct {
	configs.Problems
	timeouts []string // http jobs with the default timeout
	next     []jobTicks
}

// timeoutsNamed is how many jobs the line about default timeouts lists.
const timeoutsNamed = 5

// defaultTimeouts returns the line about http jobs with the default timeout, or "" if there are
// none.
func (r *checkReport) defaultTimeouts() string {
	if len(r.timeouts) == 0 {
		return ""
	}
	names, more := r.timeouts, ""
	if len(names) > timeoutsNamed {
		names, more = names[:timeoutsNamed], fmt.Sprintf(" and %d more", len(names)-timeoutsNamed)
	}
	return fmt.Sprintf("http jobs with the default timeout of 1h (timeout: 0s turns it off): %s%s\n", strings.Join(names, ", "), more)
}

// jobTicks holds the next ticks of one job.
type jobTicks struct {
	Job      string     `json:"job"`
	Trigger  string     `json:"trigger"`
	Timezone string     `json:"timezone"`
	Words    string     `json:"words"`
	Next     []tickTime `json:"next"`

	zone *time.Location
}

// upcoming lists the next n ticks of each job that has a schedule.
func upcoming(definitions []*jobs.Job, now time.Time, n int) ([]jobTicks, error) {
	list := []jobTicks{}
	for _, job := range definitions {
		if n == 0 || !job.Scheduled() {
			continue
		}
		trigger, err := scheduler.Trigger(job)
		if err != nil {
			return nil, err
		}
		// for an interval too: its users read local time
		zone, err := cronspec.LoadZone(job.Timezone)
		if err != nil {
			return nil, err
		}
		list = append(list, jobTicks{
			Job: job.Name, Trigger: trigger.String(), Timezone: zone.String(), Words: trigger.Words(),
			Next: nextTicks(trigger, zone, now, n), zone: zone,
		})
	}
	return list, nil
}

func (t *tool) printCheck(f format, report checkReport) error {
	switch f {
	case asJSON:
		problems := report.List
		if problems == nil {
			problems = []configs.Problem{}
		}
		return t.encode(f, map[string]any{
			"problems": problems, "errors": report.Errors(), "warnings": report.Warnings(),
			"files": report.Files, "jobs": report.Jobs, "next": append([]jobTicks{}, report.next...),
			"default_http_timeouts": append([]string{}, report.timeouts...),
		})
	case asGitHub:
		var b strings.Builder
		for _, p := range report.List {
			b.WriteString(workflowCommand(p) + "\n")
		}
		return t.write(b.String() + report.Summary() + "\n")
	}
	if err := t.write(report.Error() + "\n" + report.defaultTimeouts()); err != nil {
		return err
	}
	for _, job := range report.next {
		title := sum(": ", fmt.Sprintf("\n%s: %q %s", job.Job, job.Trigger, job.Timezone), job.Words)
		if err := t.printTicks(title, job.Next, job.zone, time.Now(), true); err != nil {
			return err
		}
	}
	return nil
}

var (
	workflowText     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	workflowProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// workflowCommand formats a problem as a GitHub workflow command.
func workflowCommand(p configs.Problem) string {
	var properties []string
	add := func(name, value string) {
		properties = append(properties, name+"="+workflowProperty.Replace(value))
	}
	if p.File != "" {
		add("file", p.File)
		if p.Line > 0 {
			add("line", fmt.Sprint(p.Line))
			add("col", fmt.Sprint(p.Column))
			add("endColumn", fmt.Sprint(p.Column+max(1, p.Width)))
		}
	}
	add("title", p.Code)
	message := p.Message
	if p.File == "" {
		message = p.Origin.String() + ": " + message
	}
	return fmt.Sprintf("::%s %s::%s", p.Severity, strings.Join(properties, ","), workflowText.Replace(sum("; ", message, p.Hint)))
}

// newSignIn returns the check that lets requests in, as configured. Its error is a config error.
func newSignIn(settings configs.Admin, log *slog.Logger) (*web.SignIn, error) {
	auth := settings.Auth
	return web.NewSignIn(web.Auth{
		Mode: web.AuthMode(auth.Mode), User: auth.User, PasswordFile: auth.PasswordFile, UsersFile: auth.UsersFile,
		TokenFile: auth.TokenFile, OperatorTokenFile: auth.OperatorTokenFile, ViewerTokenFile: auth.ViewerTokenFile,
		Header: auth.Header, Proxies: auth.Networks(), GroupsHeader: auth.GroupsHeader, Viewers: auth.Viewers, Operators: auth.Operators, Admins: auth.Admins,
	}, settings.Listen, log)
}
