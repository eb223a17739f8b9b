package cmd

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
)

// checkServer refuses a Redis that cannot be trusted with locks, as [locks.Open] would, but before
// anything is started. It leaves lesser findings to the log of the worker's lock client, and to
// doctor.
func checkServer(ctx context.Context, rdb redis.UniversalClient, log *slog.Logger) error {
	findings, err := locks.CheckServer(ctx, rdb, 0)
	if err != nil {
		log.DebugContext(ctx, "could not check Redis", "error", err)
	}
	for _, f := range findings {
		if f.Level == locks.Fatal {
			return refuse("%s", f.Text)
		}
	}
	return nil
}
