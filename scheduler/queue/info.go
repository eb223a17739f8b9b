package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Info is the state of a queue in asynq. The numbers count tasks: our deliveries and foreign tasks.
type Info struct {
	Name string
	// The namespace of the queue. It is empty if no lockstep worker has ever served the queue.
	Namespace string
	Pending   int64
	Active    int64 // fetched and not ended
	Scheduled int64 // due later, from plain asynq clients
	Retry     int64 // waiting for a retry
	Archived  int64
	Paused    bool

	// Latency is how long the oldest pending task has waited: from its sender's wall clock to that
	// of Redis.
	Latency time.Duration
}

// Queues returns all queues that asynq or a namespace knows, sorted by name, including those of
// other namespaces.
func (c *Client) Queues(ctx context.Context) ([]Info, error) {
	infos, err := c.queues(ctx)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return infos, nil
}

func (c *Client) queues(ctx context.Context) ([]Info, error) {
	var (
		names  *redis.StringSliceCmd
		owners *redis.MapStringStringCmd
		now    *redis.TimeCmd
	)
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		names = p.SMembers(ctx, queuesKey)
		owners = p.HGetAll(ctx, ownersKey)
		now = p.Time(ctx)
	})
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(names.Val()))
	for _, name := range names.Val() {
		infos = append(infos, Info{Name: name, Namespace: owners.Val()[name]})
	}
	for name, namespace := range owners.Val() {
		if !slices.Contains(names.Val(), name) {
			infos = append(infos, Info{Name: name, Namespace: namespace})
		}
	}
	slices.SortFunc(infos, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	oldest, err := c.count(ctx, infos)
	if err != nil {
		return nil, err
	}
	return infos, c.age(ctx, infos, oldest, now.Val())
}

// count fills in the numbers and returns the id of the oldest pending task of each queue that has
// one.
func (c *Client) count(ctx context.Context, infos []Info) (map[string]string, error) {
	numbers := make(map[*int64]*redis.IntCmd)
	paused, last := make([]*redis.IntCmd, len(infos)), make([]*redis.StringCmd, len(infos))
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		for i := range infos {
			info := &infos[i]
			numbers[&info.Pending] = p.LLen(ctx, queueKey(info.Name, "pending"))
			numbers[&info.Active] = p.LLen(ctx, queueKey(info.Name, "active"))
			numbers[&info.Scheduled] = p.ZCard(ctx, queueKey(info.Name, "scheduled"))
			numbers[&info.Retry] = p.ZCard(ctx, queueKey(info.Name, "retry"))
			numbers[&info.Archived] = p.ZCard(ctx, queueKey(info.Name, "archived"))
			paused[i] = p.Exists(ctx, queueKey(info.Name, "paused"))
			last[i] = p.LIndex(ctx, queueKey(info.Name, "pending"), -1)
		}
	})
	if err != nil {
		return nil, err
	}
	for to, number := range numbers {
		*to = number.Val()
	}
	oldest := make(map[string]string)
	for i := range infos {
		infos[i].Paused = paused[i].Val() == 1
		if id := last[i].Val(); id != "" {
			oldest[infos[i].Name] = id
		}
	}
	return oldest, nil
}

// age fills in the latencies.
func (c *Client) age(ctx context.Context, infos []Info, oldest map[string]string, now time.Time) error {
	since := make(map[string]*redis.StringCmd, len(oldest))
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		for name, id := range oldest {
			since[name] = p.HGet(ctx, taskKey(name, id), "pending_since")
		}
	})
	if err != nil {
		return err
	}
	for i := range infos {
		cmd, waits := since[infos[i].Name]
		if !waits {
			continue
		}
		ns, err := strconv.ParseInt(cmd.Val(), 10, 64)
		if err != nil {
			continue // fetched meanwhile, so no task is known to wait
		}
		infos[i].Latency = max(0, now.Sub(time.Unix(0, ns)))
	}
	return nil
}
