package cmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// demoState is a file that a running demo leaves in the user's cache folder, one for each demo. A
// command for which no Redis is named finds the demo by it.
type demoState struct {
	PID       int       `json:"pid"`
	Redis     string    `json:"redis"`
	Namespace string    `json:"namespace"`
	Page      string    `json:"page"`
	Started   time.Time `json:"started_at"`
}

func demoFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "lockstep"), nil
}

const demoPrefix, demoSuffix = "demo-", ".json"

// write publishes the demo and returns a function that withdraws it.
func (s *demoState) write() (remove func() error, err error) {
	folder, err := demoFolder()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(folder, fmt.Sprintf("%s%d%s", demoPrefix, s.PID, demoSuffix))
	// Write aside and rename, so that no reader sees half a file.
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, err
	}
	return func() error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}, nil
}

// findDemo returns the most recently started demo that still answers, or nil. It removes the files
// of demos that have exited.
func findDemo(ctx context.Context) *demoState {
	folder, err := demoFolder()
	if err != nil {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(folder, demoPrefix+"*"+demoSuffix))
	if err != nil {
		return nil
	}
	var demos []*demoState
	for _, path := range files {
		demo, err := new(demoState), errDemoGone // also for an unreadable file
		if text, failed := os.ReadFile(path); failed == nil && json.Unmarshal(text, demo) == nil {
			err = demo.answers(ctx)
		}
		switch {
		case err == nil:
			demos = append(demos, demo)
		case errors.Is(err, errDemoGone):
			_ = os.Remove(path) // if that is not allowed, the next call tries again
		}
	}
	if len(demos) == 0 {
		return nil
	}
	return slices.MaxFunc(demos, func(a, b *demoState) int { return cmp.Compare(a.Started.UnixNano(), b.Started.UnixNano()) })
}

// errDemoGone means that a demo has exited and left its file behind.
var errDemoGone = errors.New("the demo has exited")

// answers returns nil if the demo's process lives and its Redis replies: the PID alone may belong
// to another process by now. A demo on a busy machine may be slow, so a timeout does not mean that
// it has exited.
func (s *demoState) answers(ctx context.Context) error {
	if s.PID <= 0 || exited(s.PID) {
		return errDemoGone
	}
	u, err := url.Parse(s.Redis)
	if err != nil || !strings.HasPrefix(u.Host, "127.0.0.1:") {
		return errDemoGone
	}
	const limit = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{
		Addr: u.Host, MaxRetries: sendOnce, DialerRetries: dialOnce, DialTimeout: limit, ContextTimeoutEnabled: true,
	})
	defer func() { _ = rdb.Close() }() // only a PING was sent
	err = rdb.Ping(ctx).Err()
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errDemoGone
	}
	return err
}
