package fakes

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// Stage is a real ledger, and workers of which only the sessions are real: the test acts for them.
type Stage struct {
	Redis     *redis.Client
	Namespace string
	Ledger    *ledger.Ledger

	tb testing.TB
}

// NewStage returns a stage in a namespace of its own.
func NewStage(tb testing.TB, rdb *redis.Client) *Stage {
	tb.Helper()
	namespace := redistest.Namespace(tb)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		tb.Fatal(err)
	}
	return &Stage{Redis: rdb, Namespace: namespace, Ledger: ledger.New(rdb, space), tb: tb}
}

// Open opens a session; card nil makes it that of a user of the lock library.
func (s *Stage) Open(name string, card *worker.Card) *locks.Client {
	s.tb.Helper()
	o := locks.Options{Namespace: s.Namespace, Name: name, Grace: -1}
	if card != nil {
		text, err := json.Marshal(card)
		if err != nil {
			s.tb.Fatal(err)
		}
		o.Card = text
	}
	client, err := locks.Open(s.tb.Context(), s.Redis, o)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() { s.Close(client) })
	return client
}

// Close ends a session.
func (s *Stage) Close(client *locks.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.tb.Context()), 10*time.Second)
	defer cancel()
	if err := client.Close(ctx); err != nil && !errors.Is(err, locks.ErrClosed) {
		s.tb.Error(err)
	}
}

// Claim asks for a run.
func (s *Stage) Claim(client *locks.Client, due ledger.Due) (*ledger.Claimed, *locks.Request) {
	s.tb.Helper()
	request, err := client.Extension().Begin()
	if err != nil {
		s.tb.Fatal(err)
	}
	claimed, err := s.Ledger.Claim(s.tb.Context(), request, due, 0, nil)
	if err != nil {
		s.tb.Fatal(err)
	}
	return claimed, request
}

// Begin claims a run; the claim must be granted.
func (s *Stage) Begin(client *locks.Client, due ledger.Due) (*ledger.Claimed, *locks.Hold) {
	s.tb.Helper()
	claimed, request := s.Claim(client, due)
	if claimed.Outcome != ledger.ClaimGranted {
		s.tb.Fatalf("claim of %s: %s", due.Run, claimed.Outcome)
	}
	return claimed, request.Granted(s.tb.Context(), claimed.Grant())
}

// Enqueue makes a run that is due at once.
func (s *Stage) Enqueue(job *jobs.Job, id, args string) ledger.Due {
	s.tb.Helper()
	enqueued, err := s.Ledger.Enqueue(s.tb.Context(), ledger.Request{Job: job, ID: id, Args: []byte(args), Trigger: ledger.TriggerEnqueue})
	if err != nil {
		s.tb.Fatal(err)
	}
	if len(enqueued.Due) != 1 {
		s.tb.Fatalf("enqueue %s: %+v", id, enqueued)
	}
	return enqueued.Due[0]
}
