package web

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/queue"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func readerOf(f *fakes.Fake) *admin.Reader { return admin.ReaderOf(f, f).WithQueues(fewQueues{}) }

// fewQueues are two queues, one of them paused by another tool.
type fewQueues struct{}

func (fewQueues) Queues(context.Context) ([]queue.Info, error) {
	return []queue.Info{{Name: "critical", Namespace: "lockstep", Paused: true, Pending: 2}, {Name: "default", Namespace: "lockstep"}}, nil
}

// stage is a [fakes.Stage] with a reader.
type stage struct {
	*fakes.Stage
	t      *testing.T
	reader *admin.Reader
}

func newStage(t *testing.T, rdb *redis.Client) *stage {
	t.Helper()
	s := fakes.NewStage(t, rdb)
	return &stage{s, t, admin.NewReader(s.Ledger)}
}
