package space

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// replied is an error reply of Redis.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}

func TestOnlyAFinalReplyIsARefusal(t *testing.T) {
	t.Parallel()
	const wrapped = "ERR Error running script (call to f_8d1c): @user_script:412: @user_script: 412: "
	for _, test := range []struct {
		err  error
		want bool
	}{
		{replied("WRONGTYPE Operation against a key holding the wrong kind of value"), true},
		{replied("NOPERM this user has no permissions to run the 'evalsha' command"), true},
		{replied("ERR user_script:12: attempt to index a nil value script: 8d1c, on @user_script:12."), true},
		{replied(wrapped + "-WRONGTYPE Operation against a key holding the wrong kind of value"), true},
		{replied("ERR Error running script (call to f_8d1c): @user_script:9: user_script:9: attempt to index a nil value"), true},
		{fmt.Errorf("claim a#1: %w", replied("WRONGTYPE Operation")), true},

		{replied("LOADING Redis is loading the dataset in memory"), false},
		{replied("READONLY You can't write against a read only replica. script: 8d1c, on @user_script:3."), false},
		{replied("NOREPLICAS Not enough good replicas to write."), false},
		{replied(wrapped + "-NOREPLICAS Not enough good replicas to write."), false},
		{replied(wrapped + "-OOM command not allowed when used memory > 'maxmemory'."), false},
		{replied(wrapped + "-MISCONF Redis is configured to save RDB snapshots"), false},
		{replied("MISCONF Redis is configured to save RDB snapshots"), false},
		{replied("OOM command not allowed when used memory > 'maxmemory'."), false},
		{replied("TRYAGAIN Multiple keys request during rehashing of slot"), false},
		{replied("CLUSTERDOWN The cluster is down"), false},
		{replied("MASTERDOWN Link with MASTER is down"), false},
		{replied("BUSY Redis is busy running a script."), false},
		{replied("ERR max number of clients reached"), false},
		{replied("NOAUTH Authentication required."), false},
		{replied("WRONGPASS invalid username-password pair or user is disabled."), false},
		{redis.Nil, false}, {nil, false}, {io.EOF, false}, {context.DeadlineExceeded, false}, {redis.ErrPoolTimeout, false},
		{errors.New("dial tcp: connection refused"), false},
	} {
		if got := Refused(test.err); got != test.want {
			t.Errorf("Refused(%v) = %v, want %v", test.err, got, test.want)
		}
	}
}

// TestScriptErrorsOfTheServerAreRefusals asks a real server, because the texts differ between
// versions.
func TestScriptErrorsOfTheServerAreRefusals(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t) // its own server: it is filled
	if err := rdb.Set(t.Context(), "text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	script := func(source string) error { return rdb.Eval(t.Context(), source, []string{"text"}).Err() }
	for what, source := range map[string]string{
		"a key of the wrong type": `return redis.call('HGET', KEYS[1], 'f')`,
		"a field that is nil":     `local t = nil; return t[1]`,
		"arithmetic on a word":    `return 'x' + 1`,
	} {
		if err := script(source); !Refused(err) {
			t.Errorf("%s: %v is not taken for a refusal", what, err)
		}
	}
	for setting, value := range map[string]string{"maxmemory-policy": "noeviction", "maxmemory": "1"} {
		if err := rdb.ConfigSet(t.Context(), setting, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := script(`return redis.call('SET', KEYS[1], 'y')`); err == nil || Refused(err) {
		t.Errorf("a full server: %v is taken for a refusal", err)
	}
}

// TestRejectedPasswordIsNoRefusal has a connection that cannot sign in, as while a password is
// being replaced: that says nothing about the command for which the connection was made.
func TestRejectedPasswordIsNoRefusal(t *testing.T) {
	t.Parallel()
	o := *redistest.Client(t).Options()
	o.Username, o.Password = "replaced", "wrong"
	rdb := redis.NewClient(&o)
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); CodeOf(err) != "WRONGPASS" || Refused(err) {
		t.Errorf("got %v, a refusal: %t; want WRONGPASS, and no refusal", err, Refused(err))
	}
}
