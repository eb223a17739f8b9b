package cmd

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// embeddedRedis is a Redis inside this process, on a loopback port, for `lockstep demo` and for
// redis.url: embedded. It stores nothing on disk.
type embeddedRedis struct{ mini *miniredis.Miniredis }

func startEmbedded() (*embeddedRedis, error) {
	mini := miniredis.NewMiniRedis()
	if err := mini.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start the embedded Redis: %w", err)
	}
	return &embeddedRedis{mini}, nil
}

func (e *embeddedRedis) url() string { return "redis://" + e.mini.Addr() + "/0" }

func (e *embeddedRedis) close() { e.mini.Close() }

// age lets keys expire until ctx ends: miniredis expires keys only when told how much time has
// passed. The clock that scripts see advances by itself.
func (e *embeddedRedis) age(ctx context.Context) {
	for last := time.Now(); pause(ctx, time.Second); {
		now := time.Now()
		e.mini.FastForward(now.Sub(last))
		last = now
	}
}
