package pgtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

// shared is the one server of this test binary. It is state of the process, like its exit code.
var shared struct {
	sync.Mutex
	tried  bool // a failed start is not repeated for every test
	server *server
	err    error
}

type server struct {
	dir  string
	pid  int
	done chan struct{} // closed when the process has ended and was reaped
}

// ErrNotInstalled means that this machine has no PostgreSQL.
var ErrNotInstalled = errors.New("PostgreSQL is not installed (Debian, Ubuntu: the package postgresql)")

// Available reports whether a test that asks for PostgreSQL continues: it is installed or required.
func Available() bool {
	_, err := program("initdb")
	return err == nil || everything()
}

// everything reports whether a missing installation is a failure.
func everything() bool { return os.Getenv("LOCKSTEP_TEST_ALL") == "1" }

// Tests wraps the tests of a binary and stops the server after them.
func Tests(m interface{ Run() int }) interface{ Run() int } { return tests{m} }

type tests struct{ m interface{ Run() int } }

func (t tests) Run() int {
	code := t.m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return code
	}
	if err := shared.server.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Open returns a database in which the test has its own schema. It is closed when the test ends.
// Without PostgreSQL the test is skipped, or fails if everything must be tested.
func Open(tb testing.TB) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, DSN(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

const driver = "pgx" // the name that the imported package registers

// DSN is [Open] for several connections or processes: it returns the data source name for the
// driver "pgx", which this package registers.
func DSN(tb testing.TB) string {
	tb.Helper()
	shared.Lock()
	if !shared.tried {
		shared.tried = true
		// The server outlives the test that happens to start it.
		shared.server, shared.err = start(context.WithoutCancel(tb.Context()))
	}
	server, err := shared.server, shared.err
	shared.Unlock()
	if errors.Is(err, ErrNotInstalled) && !everything() {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	schema := "t_" + strings.ToLower(rand.Text()[:12])
	if err := server.makeSchema(tb.Context(), schema); err != nil {
		tb.Fatal(err)
	}
	return server.dsn() + " search_path=" + schema
}

func (s *server) makeSchema(ctx context.Context, name string) error {
	db, err := sql.Open(driver, s.dsn())
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "CREATE SCHEMA "+name)
	return errors.Join(err, db.Close())
}

// program finds a program of PostgreSQL. Debian keeps most of them out of PATH.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", ErrNotInstalled
	}
	return slices.Max(found), nil
}

func start(ctx context.Context) (_ *server, err error) {
	// initdb takes seconds, or many on a busy machine.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	initdb, err := program("initdb")
	if err != nil {
		return nil, err
	}
	binary, err := program("postgres")
	if err != nil {
		return nil, err
	}
	system, err := attributes()
	if err != nil {
		return nil, err
	}
	s := &server{}
	if s.dir, err = os.MkdirTemp("", "pg"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			log, _ := os.ReadFile(s.log()) // without it the error still has the rest
			err = errors.Join(fmt.Errorf("start PostgreSQL: %w\n%s", err, log), s.stop())
		}
	}()
	if system.Credential != nil {
		if err = os.Chown(s.dir, int(system.Credential.Uid), int(system.Credential.Gid)); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(s.dir, "data")
	// A setting that the user made for another server must not reach this one.
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") })
	command := exec.CommandContext(ctx, initdb, "--pgdata="+data, "--username=lockstep", "--auth=trust", "--no-sync",
		"--encoding=UTF8", "--locale=C")
	command.Dir, command.Env, command.SysProcAttr = s.dir, environment, system
	if output, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, output)
	}
	command = exec.Command(binary, "-D", data, "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off",
		"-c", "full_page_writes=off", "-c", "max_connections=400")
	command.Dir, command.Env, command.SysProcAttr = s.dir, environment, system
	if err = s.spawn(command); err != nil {
		return nil, err
	}
	return s, s.await(ctx)
}

// attributes run the server in its own process group, so that a Ctrl-C for the tests does not end
// it under them, and never as root, which it refuses.
func attributes() (*syscall.SysProcAttr, error) {
	attributes := ownAttributes()
	if os.Getuid() != 0 {
		return attributes, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(account.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return attributes, nil
	}
	return nil, errors.New("start PostgreSQL: it does not run as root, and there is no user postgres or nobody")
}

// spawn starts the server in a goroutine that stays on its thread until the server has ended: the
// kernel's signal at the parent's death (see ownAttributes) is bound to the thread that forked.
func (s *server) spawn(command *exec.Cmd) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	command.Stdout, command.Stderr = log, log
	s.done = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		defer close(s.done) // stop waits for it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		if err == nil {
			s.pid = command.Process.Pid
		}
		started <- err
		if err == nil {
			_ = command.Wait() // its log shows how it ended
		}
	}()
	return <-started
}

func (s *server) await(ctx context.Context) error {
	db, err := sql.Open(driver, s.dsn())
	if err != nil {
		return err
	}
	defer db.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("it ended")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (s *server) log() string { return filepath.Join(s.dir, "log") }

func (s *server) dsn() string {
	return "host=" + s.dir + " user=lockstep dbname=postgres sslmode=disable"
}

// stop ends the server, if it was started, and removes its files.
func (s *server) stop() error {
	if s.pid != 0 {
		// SIGINT is PostgreSQL's fast shutdown: it ends its children and frees its system
		// resources. The signal fails only if the process has ended by itself.
		_ = syscall.Kill(s.pid, syscall.SIGINT)
		<-s.done
	}
	return os.RemoveAll(s.dir)
}
