package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// settings are the flags that every measurement uses.
type settings struct {
	rounds int
	turn   time.Duration // how long one library runs before the next one's turn
	short  bool
	size   int       // runs that are due at once or outstanding; triggers that change
	stderr io.Writer // takes a line for each step, to show progress
}

// measurement is one table.
type measurement struct {
	name  string
	title string
	run   func(context.Context, settings, *result) error
}

var measurements = []measurement{
	{"pairs", "lock and unlock of distinct resources", measurePairs},
	{"waits", "the same while one request waits for another resource", measureWaits},
	{"delayed", "lock and unlock of distinct resources, Redis far away", measureDelayed},
	{"handoff", "one resource that all request and release at once", measureHandoff},
	{"shares", "ten equal waiters, 1 ms of work each", measureShares},
	{"partition", "the holder's connections fall silent", measurePartition},
	{"renewal", "commands that keep resources held", measureRenewal},
	{"kept", "what it costs to keep how holds and waits end", measureKept},
	{"bundle", "one requests ten resources, forty take one of them each", measureBundle},
	{"ask", "requests, one by one and in lists, compared with plain asynq", measureAsk},
	{"wake", "from a request to its start on an idle fleet, compared with plain asynq", measureWake},
	{"ticks", "ticks of an idle fleet: how late their runs begin, and their commands", measureTicks},
	{"jobs", "jobs end to end, compared with plain asynq", measureJobs},
	{"jobs-delayed", "the same, Redis 1 ms away", measureJobsDelayed},
	{"slots", "the same with 16 slots", measureSlots},
	{"slots-delayed", "the same, Redis 1 ms away", measureSlotsDelayed},
	{"adopt", "tasks of plain asynq clients, compared with plain asynq", measureAdopt},
	{"commands", "the start of many commands at once", measureCommands},
	{"mixed", "everything at once", measureMixed},
	{"waits-runs", "runs per second while others wait for a bill", measureWaitingRuns},
	{"size", "many runs due at one instant", measureSize},
	{"size-outstanding", "a worker beside many outstanding runs, Redis 10 ms away", measureOutstanding},
	{"size-triggers", "many triggers that change in one deploy, Redis 1 ms away", measureTriggers},
	{"capacity-runs", "what a run costs Redis", measureCapacityRuns},
	{"capacity-idle", "what a worker without work costs Redis", measureCapacityIdle},
	{"capacity-memory", "the memory of Redis", measureCapacityMemory},
	{"admin", "pages beside 100,000 jobs, 1,000,000 ended runs and 10,000 holds", measureAdmin},
	{"phases", "the server's time of each script, in each phase of a lock and of a run", measurePhases},
	{"scripts", "slowest script of each kind at 100,000 holds, 10,000 waits, 100,000 outstanding runs", measureScripts},
}

// run returns the exit code: 0 if everything was measured, whether or not targets are met, 1 if
// something failed, 2 for wrong usage.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == contendCommand {
		if err := contend(ctx, args[1:], stdin, stdout); err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 1
		}
		return 0
	}
	redis.SetLogger(quietly{})
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	s := settings{stderr: stderr}
	which := flags.String("run", "", "measure only what matches this `regexp`: "+strings.Join(names(), ", "))
	flags.IntVar(&s.rounds, "rounds", 0, "how often each library gets its turn at each load (default 7, with -short 3)")
	flags.DurationVar(&s.turn, "d", 0, "how long a turn takes (default 500ms, with -short 250ms)")
	flags.IntVar(&s.size, "size", 100_000, "how many runs are due at once or outstanding, and how many triggers change; 1000000 takes some minutes")
	flags.BoolVar(&s.short, "short", false, "fewer rounds and trials, less load")
	format := flags.String("o", "table", "table or json")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	pattern, err := regexp.Compile(*which)
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *format != "table" && *format != "json":
		err = fmt.Errorf("-o is %q; it must be table or json", *format)
	case s.size < 1000:
		err = errors.New("-size must be at least 1000")
	case s.rounds < 0 || s.turn < 0:
		err = errors.New("-rounds and -d must not be negative")
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	s.defaults()

	if err := measure(ctx, s, pattern, *format == "json", stdout); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// volume returns how many runs or triggers a measurement of large volumes takes.
func (s *settings) volume() int {
	if s.short {
		return s.size / 10
	}
	return s.size
}

func (s *settings) defaults() {
	rounds, turn := 7, 500*time.Millisecond
	if s.short {
		rounds, turn = 3, 250*time.Millisecond
	}
	if s.rounds == 0 {
		s.rounds = rounds
	}
	if s.turn == 0 {
		s.turn = turn
	}
}

// step shows progress on the terminal.
func (s *settings) step(format string, args ...any) {
	fmt.Fprintf(s.stderr, "bench: "+format+"\n", args...)
}

func names() []string {
	var names []string
	for _, m := range measurements {
		names = append(names, m.name)
	}
	return names
}

// measure runs the measurements that match. It prints each table when it is complete, or all of
// them as JSON at the end.
func measure(ctx context.Context, s settings, which *regexp.Regexp, asJSON bool, stdout io.Writer) error {
	m, err := thisMachine(ctx)
	if err != nil {
		return err
	}
	r := report{Machine: m}
	if !asJSON {
		fmt.Fprintln(stdout, r.Machine)
	}
	for _, m := range measurements {
		if !which.MatchString(m.name) {
			continue
		}
		one := &result{Name: m.name, Title: m.title}
		if err := m.run(ctx, s, one); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", m.name, context.Cause(ctx))
		}
		one.Load = loadAverage()
		r.Results = append(r.Results, one)
		if !asJSON {
			fmt.Fprintf(stdout, "\n%s", one)
		}
	}
	if len(r.Results) == 0 {
		return fmt.Errorf("nothing matches -run %q; there are %s", which, strings.Join(names(), ", "))
	}
	if asJSON {
		return r.writeJSON(stdout)
	}
	return nil
}
