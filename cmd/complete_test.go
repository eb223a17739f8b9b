package cmd

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"lockstep/jobs"
)

func TestNamesCompleteFromRedis(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {holds: {command: [sleep, "1000"], lock: {exclusive: ["bill:1001"]}}, other: {command: ["true"]}}`, long)
	f.startAll(1)
	run := f.enqueue("holds", "a")
	f.await(run, "running")
	worker := f.up()[0].ID
	for _, c := range []struct {
		args string
		want []string
	}{
		{"job show ", []string{"holds", "other"}},
		{"job show h", []string{"holds"}},
		{"job show holds ", nil},
		{"enqueue o", []string{"other"}},
		{"run output ", []string{run}},
		{"lock show bill", []string{"bill:1001"}},
		{"worker drain ", []string{worker}},
		{"config reload ", []string{worker}},
		{"queue pause ", []string{"default"}},
	} {
		// On a very busy machine, Redis may not reply within the time that a shell waits.
		eventually(t, time.Minute, fmt.Sprintf("%q completes to %q", c.args, c.want), func() bool {
			stdout, _, code := runTool(t, f.env, append([]string{"__complete"}, strings.Split(c.args, " ")...)...)
			got, _, directive := strings.Cut(stdout, ":4\n") // no files
			return code == 0 && directive && strings.Join(strings.Fields(got), " ") == strings.Join(c.want, " ")
		})
	}
}

// A completion must not delay the shell, and must not print into the command line.
func TestCompletionWithoutRedisIsEmptyAndSoon(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never replies
	must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	for url, problem := range map[string]string{
		"redis://" + silent.Addr().String(): "does not reply",
		"redis://127.0.0.1:1":               "is unreachable",
		"nonsense://":                       "has a wrong URL",
	} {
		began := time.Now()
		stdout, stderr, code := runTool(t, toolEnv(t, "REDIS_URL="+url), "__complete", "job", "show", "")
		if took := time.Since(began); took > 10*completeLimit {
			t.Errorf("a Redis that %s delays a completion by %s", problem, took)
		}
		// cobra names the directive on stderr, which the scripts for shells discard
		if code != 0 || stdout != ":4\n" || strings.Contains(stderr, "lockstep:") {
			t.Errorf("with a Redis that %s, a completion prints %q and %q and exits with %d", problem, stdout, stderr, code)
		}
	}
}

func TestEachNameOfACommandLineCompletes(t *testing.T) {
	t.Parallel()
	tool := &tool{handlers: jobs.NewRegistry(), stdin: strings.NewReader(""), stdout: t.Output(), stderr: t.Output()}
	seen := make(map[string]bool)
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		for placeholder := range completions {
			if strings.Contains(" "+strings.Trim(strings.Join(strings.Fields(cmd.Use)[1:], " "), "[].")+" ", " "+placeholder+" ") && cmd.ValidArgsFunction == nil {
				t.Errorf("%s does not complete %s", cmd.CommandPath(), placeholder)
			}
		}
		if list, _ := completionOf(cmd); list != nil {
			seen[strings.Trim(strings.Fields(cmd.Use)[1], "[].")] = true
		}
	}
	visit(tool.root())
	if len(seen) < len(completions) {
		t.Errorf("commands complete %v, want each of %d kinds of names", seen, len(completions))
	}
}
