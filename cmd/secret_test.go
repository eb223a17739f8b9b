package cmd

import (
	"encoding/base64"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestNoSecretReachesRedis runs jobs of both kinds that need no code, with a secret wherever a job
// can have one, for all triggers and with good and bad outcomes. It then reads everything that was
// ever written, even what was in Redis only for a moment.
func TestNoSecretReachesRedis(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-5f0c81"
	var told atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+secret && strings.Contains(r.URL.RawQuery, secret) {
			told.Add(1)
		}
		_ = r.Write(w) // a debugging server: it echoes the request
	}))
	t.Cleanup(service.Close)
	f, _ := newPackOn(t, []string{"appendonly yes"}, `
jobs:
  ticks:
    every: 1s
    env: {PASSWORD: "${SECRET}"}
    args: {token: "${SECRET}"}
    command: [sh, -c, '[ "$PASSWORD" = "$1" ] && echo "$LOCKSTEP_ARGS" | grep -q "$1"', "-", "${SECRET}"]
  fails:
    command: [sh, -c, '[ "$1" = "" ]', "-", "${SECRET}"]
    retry: {max: 1, initial: 10ms}
  traces:
    command: [sh, -c, 'set -x; : "Bearer $1"; printf "%s" "$1" | base64; printf "user:%s" "$1" | base64', "-", "${SECRET}"]
  prints:
    command: [sh, -c, 'head -c 20000 /dev/zero | tr "\0" x; echo "$1"; head -c 16377 /dev/zero | tr "\0" y', "-", "${SECRET}"]
  nowhere: {command: ["/nowhere/${SECRET}"], retry: {max: 0}}
  calls:
    http: {url: "`+service.URL+`/?key=${SECRET}", headers: {Authorization: "Bearer ${SECRET}"}}
`, "SECRET="+secret)
	f.startAll(1)
	eventually(t, time.Minute, "a tick", func() bool { return len(f.succeeded("ticks")) > 0 })
	f.await(f.enqueue("ticks", "a"), "succeeded")
	f.await(f.enqueue("fails", "b"), "failed")
	f.await(f.enqueue("nowhere", "c"), "failed")
	f.await(f.enqueue("calls", "d"), "succeeded")
	f.await(f.enqueue("traces", "e"), "succeeded")
	f.await(f.enqueue("prints", "f"), "succeeded")
	if told.Load() != 1 {
		t.Errorf("the service received the secret %d times, want once", told.Load())
	}
	rdb := f.connection().rdb
	folder, err := rdb.ConfigGet(t.Context(), "dir").Result()
	if err != nil {
		t.Fatal(err)
	}
	f.drain()
	read := 0
	err = filepath.WalkDir(folder["dir"], func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read += len(text)
		for _, part := range []string{secret, secret[:8], secret[8:], base64.StdEncoding.EncodeToString([]byte(secret[:12]))} {
			if i := strings.Index(string(text), part); i >= 0 {
				t.Errorf("%s, of the secret, was written: %q", part, text[max(0, i-300):min(len(text), i+50)])
			}
		}
		return nil
	})
	if err != nil || read == 0 {
		t.Errorf("read %d bytes, %v, want all that was written", read, err)
	}
}
