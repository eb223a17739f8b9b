package queue_test

import (
	"errors"
	"slices"
	"testing"

	"lockstep/locks/redistest"
	"lockstep/scheduler/queue"
)

func TestPauseAppliesToAsynqsToolsToo(t *testing.T) {
	t.Parallel()
	rdb, namespace := redistest.Client(t), redistest.Namespace(t)
	client, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	name := "q-" + namespace
	if _, err := client.Pause(t.Context(), name); !errors.Is(err, queue.ErrNoQueue) {
		t.Errorf("%v, want an unserved queue refused", err)
	}
	if err := client.Own(t.Context(), []string{name}); err != nil {
		t.Fatal(err)
	}
	other, err := queue.New(rdb, namespace+"-other")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Own(t.Context(), []string{name + "-other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Pause(t.Context(), name+"-other"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Pause(t.Context(), name); !errors.Is(err, queue.ErrOwned) {
		t.Errorf("%v, want the queue of another namespace refused", err)
	}
	for _, step := range []struct {
		do         func() (bool, error)
		news, then bool
	}{
		{func() (bool, error) { return client.Pause(t.Context(), name) }, true, true},
		{func() (bool, error) { return client.Pause(t.Context(), name) }, false, true},
		{func() (bool, error) { return client.Resume(t.Context(), name) }, true, false},
		{func() (bool, error) { return client.Resume(t.Context(), name) }, false, false},
	} {
		if news, err := step.do(); err != nil || news != step.news {
			t.Errorf("%v, %v, want %v", news, err, step.news)
		}
		all, err := client.AllPaused(t.Context())
		if err != nil || slices.Contains(all, name) != step.then || len(all) > 1 {
			t.Errorf("all paused: %v, %v; want this one: %v", all, err, step.then)
		}
		if paused, err := client.Paused(t.Context(), []string{name}); err != nil || paused[name] != step.then {
			t.Errorf("paused %v, %v, want %v", paused, err, step.then)
		}
	}
}
