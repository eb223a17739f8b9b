package locks

import (
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// faultEnv makes a test binary run with a fault in its scripts: a text, and its replacement after
// =>.
const faultEnv = "LOCKS_TEST_FAULT"

// FaultEnv is for tests that run this binary again with a fault, to show that another test finds
// it.
const FaultEnv = faultEnv

// AssertHash identifies in SLOWLOG the script that asserts holds.
var AssertHash = space.Assert.Hash()

func init() {
	from, to, planted := strings.Cut(os.Getenv(faultEnv), "=>")
	if !planted {
		return
	}
	faulty := make(map[*redis.Script]*redis.Script)
	for _, script := range []space.Script{space.Acquire, space.Assert, space.Greet, space.Renew} {
		if source := script.Source(space.Format); strings.Contains(source, from) {
			faulty[script.Redis()] = redis.NewScript(strings.ReplaceAll(source, from, to))
		}
	}
	if len(faulty) == 0 {
		panic("no script has " + from)
	}
	everyBuild = &space.Impersonator{Format: space.Format, Script: func(script *redis.Script) *redis.Script {
		if other := faulty[script]; other != nil {
			return other
		}
		return script
	}}
}
