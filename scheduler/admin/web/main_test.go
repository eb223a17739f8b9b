package web

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func readerOf(f *fakes.Fake) *admin.Reader { return admin.ReaderOf(f, f) }

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
