package space

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// transientReplies are the first words of error replies that depend on the server, not on the
// command. The server is starting, failing over, moving slots, busy, or cannot take writes now. Or
// a new connection could not sign in, as while a password is being replaced.
var transientReplies = map[string]bool{
	"LOADING": true, "BUSY": true, "READONLY": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "TRYAGAIN": true, "MOVED": true,
	"ASK": true, "NOREPLICAS": true, "MISCONF": true, "OOM": true, "UNBLOCKED": true, "NOSCRIPT": true,
	"NOAUTH": true, "WRONGPASS": true,
}

// Refused reports whether err is Redis' final reply to a command: the same command would get it
// again, whenever it is sent. Examples are a script error, a key of the wrong type and a missing
// right (NOPERM). Transient replies such as LOADING, READONLY, NOREPLICAS, MISCONF, OOM and
// WRONGPASS are not final, even in the form in which Redis 6.2 wraps those of a script's commands.
// Neither are errors on the way, such as a timeout or a closed connection.
func Refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return false
	}
	text := reply.Error()
	return !transientReplies[replyCode(text)] && !strings.HasPrefix(text, "ERR max number of clients")
}

// CodeOf returns the first word of an error reply, and "" for any other error.
func CodeOf(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	return replyCode(reply.Error())
}

// replyCode returns the first word of an error reply. Redis 6.2 wraps the reply of a command in a
// script; then it is the first word of the command's reply: "ERR Error running script (call to
// f_0a1b): @user_script:7: @user_script: 7: -NOREPLICAS Not enough ...".
func replyCode(text string) string {
	if strings.HasPrefix(text, "ERR Error running script") {
		if _, inner, wrapped := strings.Cut(text, ": -"); wrapped {
			text = inner
		}
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}

// Passing reports whether an error may pass, so that the same command should be sent again. That is
// every error on the way, and every reply that is not a refusal (see [Refused]).
func Passing(err error) bool {
	return !errors.Is(err, redis.ErrClosed) && !errors.Is(err, redis.Nil) && !Refused(err)
}

// Lasting reports whether an error reply that may pass probably lasts until a person acts: Redis
// has no memory left, cannot write to its disk, or rejects the password. A waiting request is sent
// again all the same; a try is not.
func Lasting(err error) bool {
	switch CodeOf(err) {
	case "OOM", "MISCONF", "NOAUTH", "WRONGPASS":
		return true
	}
	return false
}

// Unsent reports whether a command that failed with err surely never reached Redis.
func Unsent(err error) bool {
	var refused redis.Error
	var op *net.OpError
	return errors.As(err, &refused) || errors.Is(err, redis.ErrPoolTimeout) || errors.As(err, &op) && op.Op == "dial"
}
