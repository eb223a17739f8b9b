package locks

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// subscriber reads a session's channel. It blocks only on the network.
type subscriber struct {
	session *session
	channel string
	sub     *redis.PubSub
	quiet   time.Duration // after that long without a message it checks the connection
}

// subscribe listens to the session's channel. It returns once Redis has confirmed the subscription,
// so that no grant is published without a listener, or after try.
func (c *Client) subscribe(ctx context.Context, s *session, try time.Duration) (*subscriber, error) {
	ctx, cancel := context.WithTimeout(ctx, try)
	defer cancel()
	l := &subscriber{session: s, channel: space.Channel(c.namespace, s.id), quiet: c.lease / renewalsPerLease}
	l.sub = c.rdb.Subscribe(ctx, l.channel)
	if _, err := l.sub.ReceiveTimeout(ctx, try); err != nil {
		_ = l.sub.Close()
		return nil, c.space.Explain(err)
	}
	return l, nil
}

// run reads until ctx ends or the session is dead. go-redis reconnects and subscribes again after
// errors. Messages that were published meanwhile are lost, so each confirmed subscription starts a
// comparison of the session with Redis.
func (l *subscriber) run(ctx context.Context) {
	defer func() { _ = l.sub.Close() }()
	var pause space.Backoff
	asked := false // a ping is unanswered
	for {
		// A read is not interrupted by its context, only by closing the connection.
		sub := l.sub
		unhook := context.AfterFunc(ctx, func() { _ = sub.Close() })
		message, err := sub.ReceiveTimeout(ctx, l.quiet)
		unhook()
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			asked, pause = false, space.Backoff{}
			l.hear(message)
		case errors.Is(err, os.ErrDeadlineExceeded) && !asked:
			asked = true
			_ = sub.Ping(ctx) // an error shows in the next read
		case errors.Is(err, os.ErrDeadlineExceeded):
			asked = false
			_ = sub.Close()
			l.sub = l.session.client.rdb.Subscribe(ctx, l.channel)
		default:
			l.session.client.log.Debug("lock channel", slog.String("session", string(l.session.id)), slog.Any("error", err))
			if !pause.Wait(ctx.Done()) {
				return
			}
		}
	}
}

func (l *subscriber) hear(message any) {
	switch m := message.(type) {
	case *redis.Subscription:
		l.session.recompare()
	case *redis.Message:
		news := space.ToReply(m.Payload)
		kind, revision, id := news.At(0), uint64(news.NumberAt(1)), HoldID(news.At(2))
		program := l.session.client.extension
		switch {
		case kind == "g" && len(news) == 5:
			if token, err := ParseToken(news.At(3)); err == nil {
				l.session.granted(id, grant{token, space.Time(news.NumberAt(4))}, revision)
			}
		case kind == "r" && len(news) == 5:
			l.session.revoked(id, space.Asked{Force: Force(news.At(3)), Revocation: space.ParseRevocation(news.At(4))}, revision)
		case kind == "a" && len(news) == 3:
			l.session.unqueued(id, revision)
		case kind == "d" && len(news) == 2:
			l.session.client.reaper.announced(space.Millis(news.NumberAt(1)))
		case kind == "o" && program.OnOffer != nil:
			program.OnOffer()
		case kind == "n" && len(news) == 2 && program.OnNotice != nil:
			program.OnNotice(news.At(1))
		}
	}
}
