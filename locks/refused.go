package locks

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// transientReplies are the first words of error replies that say nothing about the command: the server is starting,
// failing over, moving slots, busy, or cannot take writes now; or a new connection could not sign in, as while a password
// is being replaced.
var transientReplies = map[string]bool{
	"LOADING": true, "BUSY": true, "READONLY": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "TRYAGAIN": true, "MOVED": true,
	"ASK": true, "NOREPLICAS": true, "MISCONF": true, "OOM": true, "UNBLOCKED": true, "NOSCRIPT": true,
	"NOAUTH": true, "WRONGPASS": true,
}

// Refused reports whether err is Redis' final reply to a command: the same command would get it again, whenever it is
// sent. Examples are a script error, a key of the wrong type and a missing right (NOPERM). Transient replies are none,
// such as LOADING, READONLY, NOREPLICAS, MISCONF, OOM and WRONGPASS, also in the form in which Redis 6.2 wraps those of a script's
// commands, and neither is an error that happened on the way, such as a timeout or a closed connection.
func Refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return false
	}
	text := reply.Error()
	return !transientReplies[replyCode(text)] && !strings.HasPrefix(text, "ERR max number of clients")
}

// codeOf returns the first word of the error reply that err is, "" when it is none.
func codeOf(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	return replyCode(reply.Error())
}

// replyCode returns the first word of an error reply; of one that Redis 6.2 gives for a command in a script, that of the
// command: "ERR Error running script (call to f_0a1b): @user_script:7: @user_script: 7: -NOREPLICAS Not enough ...".
func replyCode(text string) string {
	if strings.HasPrefix(text, "ERR Error running script") {
		if _, inner, wrapped := strings.Cut(text, ": -"); wrapped {
			text = inner
		}
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}
