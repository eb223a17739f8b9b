package web

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

const (
	followedRun  = "nightly-backup@2026-11-21T01:00:00Z" // its second attempt runs
	followedPath = "/api/v1/runs/nightly-backup@2026-11-21T01:00:00Z/output?follow=true"
)

// streamed asks for a stream and returns its reply. The test ends it.
func streamed(t *testing.T, handler http.Handler, path, place string) *http.Response {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if place != "" {
		request.Header.Set("Last-Event-ID", place)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// linesOf reads lines of a stream that are not empty: n, or with 0 all.
func linesOf(t *testing.T, body io.Reader, n int) (lines []string) {
	t.Helper()
	for scanner := bufio.NewScanner(body); (n == 0 || len(lines) < n) && scanner.Scan(); {
		if line := scanner.Text(); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestAFollowedRunIsAStreamOfEvents(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	running := &ledger.Followed{State: ledger.StateRunning, Attempt: 2, Worker: "web-1.x7k2m9qa", Passing: true, Last: 7,
		Printed: []ledger.Printed{{Attempt: 2, Upto: 12, Text: "<b>one</b>\n\u2028"}}}
	f.Follows = map[jobs.RunID]*ledger.Followed{followedRun: running}
	response := streamed(t, newServer(t, f), followedPath, "")
	if h := response.Header; response.StatusCode != http.StatusOK || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" {
		t.Errorf("got %d, %v", response.StatusCode, h)
	}
	want := []string{
		"event: attempt", `data: {"attempt":2,"worker":"web-1.x7k2m9qa","state":"running"}`,
		"id: 2-12", "event: output", `data: {"attempt":2,"to":12,"text":"\u003cb\u003eone\u003c/b\u003e\n\u2028"}`,
	}
	if got := linesOf(t, response.Body, len(want)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAStreamEndsWithItsRun(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/runs/nightly-backup@2026-11-20T01:00:00Z/output?follow=true"
	s := newServer(t, fakes.Fleet())
	want := []string{
		"event: output", `data: {"attempt":1,"stored":true,"text":"dumped\n"}`,
		"id: end", "event: end", `data: {"state":"succeeded"}`,
	}
	if got := linesOf(t, streamed(t, s, path, "").Body, 0); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if again := streamed(t, s, path, "end"); again.StatusCode != http.StatusNoContent {
		t.Errorf("a client that connects again after the end gets %d, want 204, which keeps it from coming back", again.StatusCode)
	}
	if got := linesOf(t, streamed(t, s, path, "1-7").Body, 0); !slices.Contains(got, "event: end") || slices.Contains(got, "event: output") {
		t.Errorf("a client that had everything gets %q, want no output again", got)
	}
}

func TestAStreamIsRefusedLikeAnyAnswer(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	const run = "/api/v1/runs/nightly-backup@2026-11-20T01:00:00Z/output"
	for path, want := range map[string]int{
		run + "?follow=maybe":           http.StatusBadRequest,
		run + "?follow=true&attempt=1":  http.StatusBadRequest,
		run + "?attempt=0":              http.StatusBadRequest,
		run + "?attempt=x":              http.StatusBadRequest,
		run + "?attempt=2":              http.StatusNotFound,
		run + "?attempt=1&follow=false": http.StatusOK,

		"/api/v1/runs/none%23x/output?attempt=1":   http.StatusNotFound,
		"/api/v1/runs/none%23x/output?follow=true": http.StatusNotFound,
	} {
		w := get(s, path)
		if w.Code != want {
			t.Errorf("%s: got %d, want %d: %s", path, w.Code, want, w.Body)
		}
		if want != http.StatusOK && w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %s", path, w.Header().Get("Content-Type"))
		}
	}
	if w := get(s, run+"?attempt=1"); w.Body.String() != "dumped\n" || w.Header().Get("Lockstep-Attempt") != "1" {
		t.Errorf("got %q of attempt %q, want the output of attempt 1", w.Body, w.Header().Get("Lockstep-Attempt"))
	}
	if w := request(s, http.MethodHead, followedPath); w.Code != http.StatusOK || w.Body.Len() > 0 {
		t.Errorf("HEAD: got %d, %q", w.Code, w.Body)
	}
	s.followers.Store(followersMost)
	if w := get(s, followedPath); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "64 clients") {
		t.Errorf("one client too many gets %d: %s", w.Code, w.Body)
	}
}

// TestManyStreamsCostNoMoreThanOne counts the reads of a fake Redis.
func TestManyStreamsCostNoMoreThanOne(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	server := httptest.NewServer(newServer(t, f))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	for range 40 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+followedPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		linesOf(t, response.Body, 2)
	}
	before, began := f.ReadCount.Load(), time.Now()
	for time.Since(began) < 2*time.Second {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	seconds := time.Since(began).Seconds()
	if reads := f.ReadCount.Load() - before; float64(reads) > 6*seconds {
		t.Errorf("%d reads in %.1f s for 40 streams, want about one a second", reads, seconds)
	}
}

func TestStreamsDoNotHoldUpTheShutdown(t *testing.T) {
	t.Parallel()
	listener, err := Listen("127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- Serve(serving, listener, newServer(t, fakes.Fleet())) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+followedPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	linesOf(t, response.Body, 2)
	stop()
	if rest, err := io.ReadAll(response.Body); err != nil {
		t.Errorf("the stream ends with %v after %q, want an orderly end", err, rest)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
