package cmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"

	"lockstep/locks/redistest"
)

// TestScripts runs the command lines of testdata/script and checks what they print and how they
// exit. Each script has its own redis-server, named by REDIS_URL, since queues belong to one
// namespace. The tool is the one that is shipped: the race detector triples the CPU time of these
// hundreds of short commands, and other tests give it to workers.
//
// Besides testscript's own commands, they use
//
//	exits CODE COMMAND [ARG...]       run a command that exits with this code
//	until REGEXP COMMAND [ARG...]     run it again and again, until stdout matches
//	redis COMMAND [ARG...]            send a command to the redis-server
//	busyport NAME                     listen on a port, and put its address into a variable
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob(filepath.Join("testdata", "script", "*.txtar"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	runScripts(t, plainPath, scripts...)
}

// runScripts runs command lines with a tool.
func runScripts(t *testing.T, tool string, scripts ...string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Files: scripts,
		Setup: func(env *testscript.Env) error {
			server, err := redistest.Start(t.Context(), redistest.Options{})
			if err != nil {
				return err
			}
			env.Defer(func() {
				if err := server.Stop(); err != nil {
					t.Error(err)
				}
			})
			env.Values["server"] = server
			env.Setenv("REDIS_URL", server.URL())
			env.Setenv("PATH", filepath.Dir(tool)+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": scriptExits, "until": scriptUntil, "busyport": scriptBusyPort,
			"redis": func(ts *testscript.TestScript, neg bool, args []string) { scriptRedis(t.Context(), ts, neg, args) },
		},
		RequireExplicitExec: true,
	})
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitCode(ts, args[1:]); got != want {
		ts.Fatalf("%q exits with %d, want %d", args[1:], got, want)
	}
}

func exitCode(ts *testscript.TestScript, args []string) int {
	err := ts.Exec(args[0], args[1:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		ts.Fatalf("%q: %v", args, err)
	}
	return 0
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND [ARG...]")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		code := exitCode(ts, args[1:])
		if code == 0 && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%q never printed %q; at last it exited with %d and printed\n%s", args[1:], args[0], code, ts.ReadFile("stdout"))
		}
	}
}

func scriptRedis(ctx context.Context, ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: redis COMMAND [ARG...]")
	}
	client := redis.NewClient(ts.Value("server").(*redistest.Server).RedisOptions())
	defer client.Close()
	words := make([]any, len(args))
	for i, arg := range args {
		words[i] = arg
	}
	answer, err := client.Do(ctx, words...).Result()
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), answer)
}

func scriptBusyPort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: busyport NAME")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = listener.Close() })
	ts.Setenv(args[0], listener.Addr().String())
}
