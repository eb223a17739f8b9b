package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// fault breaks commands of a worker.
type fault struct {
	breaks func(cmd redis.Cmder, send func() error) error
}

func (f fault) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f fault) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f fault) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := f.breaks(cmd, func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

// broken gives a worker its own client, which has commands that break.
func (f *fleet) broken(breaks func(redis.Cmder, func() error) error) func(*worker.Options) {
	return func(o *worker.Options) {
		options := *f.rdb.Options()
		rdb := redis.NewClient(&options)
		f.Cleanup(func() { _ = rdb.Close() })
		rdb.AddHook(fault{breaks: breaks})
		o.Redis = rdb
	}
}

// says reports whether a text is one of the words of a command.
func says(cmd redis.Cmder, text string) bool {
	return slices.ContainsFunc(cmd.Args(), func(arg any) bool { return fmt.Sprint(arg) == text })
}

var errLost = errors.New("the answer is lost")

// lossy gives a worker connections of its own, including those that it opens itself. A connection
// loses the reply to a request for which loses returns true, after meanwhile has returned; by then
// the request has been applied.
func (f *fleet) lossy(loses func(request string) bool, meanwhile func()) func(*worker.Options) {
	return func(o *worker.Options) {
		options := *f.rdb.Options()
		options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &lossyConn{Conn: conn, loses: loses, meanwhile: meanwhile}, err
		}
		rdb := redis.NewClient(&options)
		f.Cleanup(func() { _ = rdb.Close() })
		o.Redis = rdb
	}
}

type lossyConn struct {
	net.Conn
	loses     func(string) bool
	meanwhile func()
	lost      atomic.Bool
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if c.loses(string(p)) {
		c.lost.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *lossyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if strings.HasPrefix(string(p[:n]), "-NOSCRIPT") {
		c.lost.Store(false) // the script itself follows, perhaps on another connection
	}
	if !c.lost.Load() {
		return n, err
	}
	c.meanwhile()
	return 0, errors.Join(errLost, c.Close())
}

// TestLostReplyToAFinishIsRecordedOnce: a finish is applied, and its worker gets no reply and
// sends it again. The second one changes nothing, the locks and the slot are free, and no other
// attempt begins.
func TestLostReplyToAFinishIsRecordedOnce(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("settle", d.handle, func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill"} })
	var lost atomic.Int32
	finishes := func(request string) bool { // the only request with this word
		return strings.Contains(request, "\r\nsucceeded\r\n") && lost.Load() < 2
	}
	f.start(f.lossy(finishes, func() { lost.Add(1) }), func(o *worker.Options) { o.Concurrency = 1 })
	for i := range 3 {
		record := f.awaitState(f.enqueue(job, fmt.Sprint(i)), ledger.StateSucceeded)
		if len(record.Attempts) != 1 || record.Crashes != 0 || record.Reason != "" {
			t.Errorf("%+v, want one attempt that succeeded", record)
		}
	}
	if got := d.all(); len(got) != 3 {
		t.Errorf("got runs %v, want three", got)
	}
	if lost.Load() != 2 {
		t.Errorf("%d answers were lost, want 2: nothing was tested", lost.Load())
	}
}
