package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/worker"
)

// TestDoctorTellsWorkersApart sets up workers, some of them faked, with different clocks, configs
// and versions.
func TestDoctorTellsWorkersApart(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	env := toolEnv(t, "REDIS_URL="+server.URL())
	ids := make(map[string]string)
	for _, card := range []worker.Card{
		{Host: "on-time", Config: "aaa", Version: "1", Clock: time.Second},
		{Host: "ahead", Config: "aaa", Version: "1", Clock: 10 * time.Minute},
		{Host: "behind", Config: "bbb", Version: "2", Clock: -90 * time.Second, Drifted: 2},
	} {
		card.State, card.Slots, card.Queues, card.StartedAt = "ready", 4, map[string]int{"default": 1}, time.Now()
		text, err := json.Marshal(card)
		if err != nil {
			t.Fatal(err)
		}
		client, err := locks.Open(t.Context(), server.Client(t), locks.Options{
			Namespace: "lockstep", Name: card.Host, Card: text, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
		ids[card.Host] = string(client.Session())
	}
	type line struct {
		Level, Topic, Finding string
		On                    *string
	}
	for _, want := range []line{
		{"ok", "workers", "3 workers, 12 slots", nil},
		{"warning", "clock", "its clock is 10m ahead of Redis'", new(ids["ahead"])},
		{"warning", "clock", "its clock is 1m 30s behind Redis'", new(ids["behind"])},
		{"warning", "drift", "2 jobs of its config: another definition is the active one", new(ids["behind"])},
		{"warning", "drift", "2 configs (aaa: " + ids["ahead"] + " " + ids["on-time"] + "; bbb: " + ids["behind"] + ")", nil},
		{"warning", "drift", "2 versions (1: ", nil},
	} {
		found := 0
		for _, got := range ask[[]line](t, env, "doctor") {
			same := got.On == nil && want.On == nil || got.On != nil && want.On != nil && *got.On == *want.On
			if got.Level == want.Level && got.Topic == want.Topic && same && strings.Contains(got.Finding, want.Finding) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d findings are %+v, want one", found, want)
		}
	}
	var clocks int
	for _, got := range ask[[]line](t, env, "doctor") {
		if got.Topic == "clock" && got.On != nil {
			clocks++
		}
	}
	if clocks != 2 {
		t.Errorf("doctor reports the clocks of %d workers, want two", clocks)
	}
}

// TestDoctorNamesListsThatNobodyRecords: their senders have died, and no worker is up.
func TestDoctorNamesListsThatNobodyRecords(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	if err := rdb.HSet(t.Context(), "{lockstep}:lists", "n:x", "1 0", "n:y", fmt.Sprint(time.Now().UnixMilli(), " 0")).Err(); err != nil {
		t.Fatal(err)
	}
	stdout, _, _ := runTool(t, toolEnv(t, "REDIS_URL="+server.URL()), "doctor")
	if want := "2 lists of requests, all or none, still to be recorded, the oldest one for "; !strings.Contains(stdout, want) {
		t.Errorf("doctor prints\n%s\nwant %q", stdout, want)
	}
}
