package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// server is a redis-server of our own.
type server struct {
	process *redistest.Server
	admin   *redis.Client    // on the Unix socket, for INFO
	addr    string           // of the port on the loopback interface
	logged  map[string]spent // by script, since [server.logScripts]; nil: it logs none
}

func startServer(ctx context.Context) (*server, error) {
	process, err := redistest.Start(ctx, redistest.Options{TCP: true})
	if err != nil {
		return nil, err
	}
	addr, err := addrOf(process.URL())
	if err != nil {
		_ = process.Stop()
		return nil, err
	}
	return &server{process: process, admin: redis.NewClient(process.RedisOptions()), addr: addr}, nil
}

func (s *server) stop() {
	_ = s.admin.Close()
	_ = s.process.Stop() // it is killed; at worst, an empty folder remains
}

// startWithClient starts a server and returns it with a client, and a function that ends both.
func startWithClient(ctx context.Context) (s *server, rdb *redis.Client, stop func(), err error) {
	if s, err = startServer(ctx); err != nil {
		return nil, nil, nil, err
	}
	rdb = dial(s.addr)
	return s, rdb, func() { _ = rdb.Close(); s.stop() }, nil
}

// dial returns a client whose pool is large enough for a worker.
func dial(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, PoolSize: 2 * concurrency, ContextTimeoutEnabled: true})
}

// addrOf returns host and port of a redis:// URL.
func addrOf(url string) (string, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return "", err
	}
	return o.Addr, nil
}

// info returns a section of INFO.
func (s *server) info(ctx context.Context, section string) (map[string]string, error) {
	all, err := s.admin.Info(ctx, section).Result()
	if err != nil {
		return nil, fmt.Errorf("INFO %s: %w", section, err)
	}
	return parseInfo(all), nil
}

func parseInfo(all string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(all) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields
}

// usage is the work of a server since its start.
type usage struct {
	calls map[string]float64 // by command, including those inside scripts
	micro map[string]float64 // µs spent in them; the time of a script includes its commands
	cpu   float64            // µs of the main thread
	sent  float64            // bytes
	// from sockets: one for each round trip of a client if commands are short
	reads  float64
	logged map[string]spent // by script, if the server logs them
}

// usage asks the server. It leaves its own INFO commands out of the counts.
func (s *server) usage(ctx context.Context) (usage, error) {
	u := usage{calls: make(map[string]float64), micro: make(map[string]float64)}
	stats, err := s.info(ctx, "commandstats")
	if err != nil {
		return u, err
	}
	for key, value := range stats {
		command, ok := strings.CutPrefix(key, "cmdstat_")
		if !ok || command == "info" {
			continue
		}
		for field := range strings.SplitSeq(value, ",") {
			name, number, _ := strings.Cut(field, "=")
			switch name {
			case "calls":
				u.calls[command] = parseNumber(number)
			case "usec":
				u.micro[command] = parseNumber(number)
			}
		}
	}
	cpu, err := s.info(ctx, "cpu")
	if err != nil {
		return u, err
	}
	u.cpu = 1e6 * (parseNumber(cpu["used_cpu_sys_main_thread"]) + parseNumber(cpu["used_cpu_user_main_thread"]))
	network, err := s.info(ctx, "stats")
	if err != nil {
		return u, err
	}
	u.sent = parseNumber(network["total_net_output_bytes"])
	u.reads = parseNumber(network["total_reads_processed"])
	if s.logged != nil {
		err = s.readLog(ctx)
		u.logged = maps.Clone(s.logged)
	}
	return u, err
}

// parseNumber parses a number from INFO; a field that a server does not have counts as 0.
func parseNumber(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// since returns the work after an earlier reading.
func (u usage) since(before usage) usage {
	d := usage{
		calls: make(map[string]float64), micro: make(map[string]float64), cpu: u.cpu - before.cpu, sent: u.sent - before.sent,
		reads: u.reads - before.reads, logged: make(map[string]spent),
	}
	for name, all := range u.logged {
		if one := before.logged[name]; all.calls > one.calls {
			d.logged[name] = spent{all.calls - one.calls, all.micro - one.micro}
		}
	}
	for command, n := range u.calls {
		d.calls[command] = n - before.calls[command]
	}
	for command, n := range u.micro {
		d.micro[command] = n - before.micro[command]
	}
	return d
}

// commands returns how many commands ran, including those inside scripts.
func (u usage) commands() float64 {
	var sum float64
	for _, n := range u.calls {
		sum += n
	}
	return sum
}

// scripts returns how many scripts ran.
func (u usage) scripts() float64 { return u.calls["evalsha"] + u.calls["eval"] }

// scriptTime returns the µs spent in scripts, including their commands.
func (u usage) scriptTime() float64 { return u.timeOf([]string{"evalsha", "eval"}) }

// timeOf returns the µs spent in commands that a client sent itself.
func (u usage) timeOf(sent []string) float64 {
	var sum float64
	for _, command := range sent {
		sum += u.micro[command]
	}
	return sum
}
