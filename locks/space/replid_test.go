package space

import (
	"strings"
	"testing"

	"lockstep/locks/redistest"
)

// TestServerThatHidesItsRunIDIsKnownByItsReplicationID shows the scripts an INFO without a run_id,
// as some providers do, on a real server that is promoted.
func TestServerThatHidesItsRunIDIsKnownByItsReplicationID(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	r := newRig(t, rdb)
	if err := rdb.Del(t.Context(), r.keys[6]).Err(); err != nil {
		t.Fatal(err)
	}
	r.source = func(source string) string {
		return strings.ReplaceAll(source, serverCall, "'uptime_in_seconds:5'")
	}
	replid := func() string {
		for line := range strings.Lines(rdb.Info(t.Context(), "replication").Val()) {
			if id, ok := strings.CutPrefix(strings.TrimSpace(line), "master_replid:"); ok {
				return id
			}
		}
		return ""
	}
	r.do(t, "open", "s", 60_000, "{}", "id", "0")
	if got := rdb.HGet(t.Context(), r.keys[6], "server").Val(); got != replid() || len(got) != 40 {
		t.Errorf("the space knows the server %q, want %q", got, replid())
	}
	if got := r.do(t, "greet", 0, 0); got[0] != "known" {
		t.Errorf("got %q of the same server", got)
	}
	for _, to := range [][2]string{{"127.0.0.1", "1"}, {"NO", "ONE"}} {
		if err := rdb.Do(t.Context(), "REPLICAOF", to[0], to[1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.do(t, "greet", 0, 0); got[0] != "changed" {
		t.Errorf("got %q of a promoted server, want it noticed", got)
	}
	r.source = func(source string) string {
		source = strings.ReplaceAll(source, serverCall, "'uptime_in_seconds:5'")
		return strings.ReplaceAll(source, replicationCall, "'role:master'")
	}
	clear(r.scripts)
	if got := r.do(t, "greet", 0, 0); got[0] != "hidden" {
		t.Errorf("got %q of a server that hides both, want that reported", got)
	}
}
