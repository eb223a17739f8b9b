package locks

import (
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

// faultEnv makes a test binary run with a fault in its scripts: a text, and its replacement after
// =>.
const faultEnv = "LOCKS_TEST_FAULT"

// FaultEnv is for tests that run this binary again with a fault, to show that another test finds
// it.
const FaultEnv = faultEnv

// AssertHash identifies in SLOWLOG the script that asserts holds.
var AssertHash = assertScript().Hash()

func init() {
	from, to, planted := strings.Cut(os.Getenv(faultEnv), "=>")
	if !planted {
		return
	}
	found := false
	for name, script := range map[string]*lazyScript{
		"acquire": &acquireScript, "assert": &assertScript, "greet": &greetScript, "renew": &renewScript,
	} {
		source := scriptSource(name)
		found = found || strings.Contains(source, from)
		faulty := redis.NewScript(strings.ReplaceAll(source, from, to))
		*script = func() *redis.Script { return faulty }
	}
	if !found {
		panic("no script has " + from)
	}
}
