package cmd

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/configs"
	"lockstep/locks"
)

func TestURLKinds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		url  string
		want redis.UniversalOptions
	}{
		{"redis://", redis.UniversalOptions{Addrs: []string{"127.0.0.1:6379"}}},
		{"redis://h/3", redis.UniversalOptions{Addrs: []string{"h:6379"}, DB: 3}},
		{"redis://u%40:p%2Fw@h:1/0", redis.UniversalOptions{Username: "u@", Password: "p/w", Addrs: []string{"h:1"}}},
		{"redis://:p@h:1", redis.UniversalOptions{Password: "p", Addrs: []string{"h:1"}}},
		{"redis://:7", redis.UniversalOptions{Addrs: []string{"127.0.0.1:7"}}},
		{"rediss://[::1]:7", redis.UniversalOptions{Addrs: []string{"[::1]:7"}}},
		{"redis://[::1]", redis.UniversalOptions{Addrs: []string{"[::1]:6379"}}},
		{"unix:///run/r.sock?db=2", redis.UniversalOptions{Addrs: []string{"/run/r.sock"}, DB: 2}},
		{"unix://u:p@/r.sock", redis.UniversalOptions{Username: "u", Password: "p", Addrs: []string{"/r.sock"}}},
		{"redis-sentinel://a,b:2/1?master=m", redis.UniversalOptions{Addrs: []string{"a:26379", "b:2"}, DB: 1, MasterName: "m"}},
		{"redis-cluster://u:p@a:1,b", redis.UniversalOptions{IsClusterMode: true, Username: "u", Password: "p", Addrs: []string{"a:1", "b:6379"}}},
		{"rediss-cluster://a:1", redis.UniversalOptions{IsClusterMode: true, Addrs: []string{"a:1"}}},
		{"rediss-sentinel://u:p&%3F@[::1],b/1?master=m", redis.UniversalOptions{Username: "u", Password: "p&?", Addrs: []string{"[::1]:26379", "b:26379"}, DB: 1, MasterName: "m"}},
	} {
		got, err := parseURL(test.url)
		if err != nil || fmt.Sprint(*got) != fmt.Sprint(test.want) {
			t.Errorf("%s: got %+v, %v; want %+v", test.url, got, err, test.want)
		}
	}
}

// The scripts rely on clients that send each command once and keep its deadline.
func TestClientsSendOnceAndKeepDeadlines(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://h/1", "rediss://h", "unix:///s", "redis-sentinel://h?master=m", "redis-cluster://h", "rediss-sentinel://h?master=m", "rediss-cluster://h"} {
		rdb, err := newClient(configs.Redis{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		defer rdb.Close()
		switch rdb := rdb.(type) {
		case *redis.Client:
			// The client turns -1 into 0: no retries.
			if o := rdb.Options(); o.MaxRetries != 0 || !o.ContextTimeoutEnabled || o.DialerRetries != 1 {
				t.Errorf("%s: %d retries, deadlines kept %v, %d dials", url, o.MaxRetries, o.ContextTimeoutEnabled, o.DialerRetries)
			}
			if want := map[bool]string{true: "unix", false: "tcp"}[url == "unix:///s"]; rdb.Options().Network != want && !strings.Contains(url, "-sentinel") {
				t.Errorf("%s: network %s", url, rdb.Options().Network)
			}
			if strings.HasPrefix(url, "rediss") != (rdb.Options().TLSConfig != nil) {
				t.Errorf("%s: TLS %v", url, rdb.Options().TLSConfig)
			}
		case *redis.ClusterClient:
			if o := rdb.Options(); strings.HasPrefix(url, "rediss") != (o.TLSConfig != nil && o.Dialer != nil) {
				t.Errorf("%s: TLS %v", url, o.TLSConfig)
			}
			if o := rdb.Options(); o.MaxRetries > 0 || o.MaxRedirects != 3 || !o.ContextTimeoutEnabled {
				t.Errorf("%s: %d retries, %d redirects, deadlines kept %v", url, o.MaxRetries, o.MaxRedirects, o.ContextTimeoutEnabled)
			}
			// The library's default is a minute, for as long as a master that has stopped is asked.
			if o := rdb.Options(); o.ClusterStateReloadInterval > 10*time.Second {
				t.Errorf("%s: the slots are read every %s", url, o.ClusterStateReloadInterval)
			}
		}
	}
}

// The library knows more parameters than configs allows. None of them changes what the locks depend
// on, and an unknown one is an error without its value.
func TestURLParametersOfTheLibrary(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://h?max_retries=3&dial_timeout=9s", "rediss-cluster://h?max_redirects=9&read_only=true", "rediss-sentinel://h?master=m&max_retries=3"} {
		o, err := parseURL(url)
		if err != nil || o.MaxRetries != 0 || o.MaxRedirects != 0 || o.DialTimeout != 0 || o.ReadOnly {
			t.Errorf("%s: got %+v, %v", url, o, err)
		}
	}
	for _, url := range []string{"redis://h?tls=SECRET", "redis-cluster://h?tls=SECRET", "redis-sentinel://:SECRET@h?master=m&tls=SECRET", "redis://:SECRET@h h"} {
		if _, err := parseURL(url); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: got %v, want an error without the value", url, err)
		}
	}
}

func TestNearNames(t *testing.T) {
	t.Parallel()
	known := []string{"nightly-backup", "settle-bills", "settle-books", "a", "b"}
	for name, want := range map[string]string{
		"settle-bils": "settle-bills settle-books", "nightly": "nightly-backup", "nightlybackup": "nightly-backup", "zzzzzzzz": "", "c": "a b",
	} {
		if got := strings.Join(near(name, known), " "); got != want {
			t.Errorf("near(%q) = %q, want %q", name, got, want)
		}
	}
}

// Text from a command or a request must not move the cursor or fake a line of a table.
func TestForeignTextStaysOnItsLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\nb\r\tc": "a b  c", "\x1b[31mred\x1b[0m": "\x1b[31mred\x1b[0m", "\x1b[2Jgone": " [2Jgone", "\x1b]0;title\x07": " ]0;title ", "\u009b2J": " 2J", "ä": "ä", "a\u202eb\u200f": "a b ",
	} {
		if got := oneLine(in); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTableLinesUp(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := (&tool{stdout: &b}).table([]string{"a", "name"}, [][]string{{"ä\x1b[31mö\x1b[0m", ""}, {"", "x y"}, {"long", "z"}}); err != nil {
		t.Fatal(err)
	}
	want := "A     NAME\nä\x1b[31mö\x1b[0m    -\n-     x y\nlong  z\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

// YAML without quotes must not turn strings into other types.
func TestYAMLKeepsStrings(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	value := map[string]any{"b": []any{}, "c": map[string]any{}, "n": 7, "null": nil, "t": "1795222800123456", "u": "yes: no", "v": "null", "w": "2027-01-01", "x": "a\nb", "y": "#", "z": true}
	if err := (&tool{stdout: &b}).encode(asYAML, value); err != nil {
		t.Fatal(err)
	}
	want := `b: []
c: {}
n: 7
"null": null
t: "1795222800123456"
u: 'yes: no'
v: "null"
w: "2027-01-01"
x: |-
    a
    b
y: '#'
z: true
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestLocalAddress(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"127.0.0.1:9620": "127.0.0.1:9620", ":9620": "127.0.0.1:9620", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", "[::1]:1": "[::1]:1", "localhost:1": "localhost:1",
	} {
		if got := localAddress(in); got != want {
			t.Errorf("localAddress(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestWorkersSetWhatTheLockSpaceKeeps(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		keep configs.Keep
		want locks.Keep
	}{
		{configs.Keep{Holds: time.Hour, Entries: 7}, locks.Keep{For: time.Hour, Entries: 7}},
		{configs.Keep{Entries: 7}, locks.Keep{Entries: -1}},
		{configs.Keep{Holds: time.Hour}, locks.Keep{Entries: -1}},
	} {
		settings := configs.Settings{Admin: configs.Admin{Keep: test.keep}}
		if got := workerLockOptions(settings).Keep; got != test.want {
			t.Errorf("%+v: got %+v, want %+v", test.keep, got, test.want)
		}
		if got := lockOptions(settings).Keep; got != (locks.Keep{}) {
			t.Errorf("a command sets %+v", got)
		}
	}
}
