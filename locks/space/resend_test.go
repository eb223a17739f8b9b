package space

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestACallIsRepeatedUntilItIsDone(t *testing.T) {
	passes, lasts := errors.New("passes"), errors.New("lasts")
	type outcome struct {
		done bool
		err  error
	}
	for name, test := range map[string]struct {
		pause Backoff
		calls []outcome
		at    []time.Duration // of the calls
		err   error
	}{
		"a reply":             {Backoff{}, []outcome{{true, nil}}, []time.Duration{0}, nil},
		"an error that lasts": {Backoff{}, []outcome{{true, lasts}}, []time.Duration{0}, lasts},
		"more to do":          {Backoff{}, []outcome{{false, nil}, {false, nil}, {true, nil}}, []time.Duration{0, 0, 0}, nil},
		"errors that pass": {Backoff{}, []outcome{{false, passes}, {false, passes}, {false, nil}, {false, passes}, {true, lasts}},
			[]time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond, 60 * time.Millisecond, 140 * time.Millisecond}, lasts},
		"pauses of the caller": {Backoff{First: time.Second, Most: 3 * time.Second},
			[]outcome{{false, passes}, {false, passes}, {false, passes}, {false, passes}, {true, nil}},
			[]time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second, 9 * time.Second}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, calls := time.Now(), test.calls
				var at []time.Duration
				err := Insist(test.pause, func() (bool, error) {
					at = append(at, time.Since(began))
					call := calls[0]
					calls = calls[1:]
					return call.done, call.err
				})
				if !errors.Is(err, test.err) || !slices.Equal(at, test.at) {
					t.Errorf("calls at %v, %v, want %v, %v", at, err, test.at, test.err)
				}
			})
		})
	}
}

func TestAClosedChannelEndsThePauseBetweenCalls(t *testing.T) {
	for which := range 2 {
		synctest.Test(t, func(t *testing.T) {
			stops := []chan struct{}{make(chan struct{}), make(chan struct{})}
			time.AfterFunc(50*time.Millisecond, func() { close(stops[which]) })
			began, calls, passes := time.Now(), 0, errors.New("passes")
			err := Insist(Backoff{}, func() (bool, error) { calls++; return false, passes }, stops[0], stops[1])
			if took := time.Since(began); calls != 2 || took != 50*time.Millisecond || !errors.Is(err, passes) {
				t.Errorf("stop %d: %d calls in %v, %v, want 2 in 50ms", which, calls, took, err)
			}
		})
	}
}
