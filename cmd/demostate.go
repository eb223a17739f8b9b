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

// demoState is what a running demo leaves in the user's cache folder, one file for each demo, so that a command line
// which was told of no Redis finds it.
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

// write makes the demo known and returns how to take that back.
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
	// Written aside and renamed: nobody reads half of it.
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

// findDemo returns the demo that was started last and still answers, or nil. Files of demos that are gone are removed.
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
		demo, err := new(demoState), errDemoGone // also of a file that nobody can read
		if text, failed := os.ReadFile(path); failed == nil && json.Unmarshal(text, demo) == nil {
			err = demo.answers(ctx)
		}
		switch {
		case err == nil:
			demos = append(demos, demo)
		case errors.Is(err, errDemoGone):
			_ = os.Remove(path) // where that is not allowed it is looked at again the next time
		}
	}
	if len(demos) == 0 {
		return nil
	}
	return slices.MaxFunc(demos, func(a, b *demoState) int { return cmp.Compare(a.Started.UnixNano(), b.Started.UnixNano()) })
}

// errDemoGone says that a demo's file was left behind.
var errDemoGone = errors.New("there is no such demo any more")

// answers returns nil when the demo's process lives and its Redis answers: a pid alone may have passed to another process. A
// demo on a busy machine may take its time, and is not gone for that.
func (s *demoState) answers(ctx context.Context) error {
	if s.PID <= 0 || errors.Is(syscall.Kill(s.PID, 0), syscall.ESRCH) {
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
	defer func() { _ = rdb.Close() }() // it was only asked
	err = rdb.Ping(ctx).Err()
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errDemoGone
	}
	return err
}
