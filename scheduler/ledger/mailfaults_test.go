package ledger_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// foundFault is the panic with which a history ends that has found a planted one.
type foundFault string

// TestFaultsOfMessagesAreFound plants faults in what the scripts do with messages. Random histories
// must find them.
func TestFaultsOfMessagesAreFound(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string][2]string{
		"an end has no message": {"if definition then\n    local event", "if false then\n    local event"},
		"a finish that is sent again has its message again": {"if past and past[R_TOKEN] == token then", "if past and past[R_TOKEN] == token then\n" +
			"    if outcome == 'failed' then post('all', past[R_JOB], {M_TEXT{ID = id .. '.' .. token; EVENT = 'failed'; AT = ms; RUN = id}}) end"},
		"a missed tick has no message":                     {"if messages then messages[#messages + 1]", "if false then messages[#messages + 1]"},
		"one of several ticks has a message":               {"if messages then messages[#messages + 1]", "if messages then messages[1]"},
		"two ends have one name":                           {"if run[R_STATE] == 'running' then return run[R_TOKEN] end", "if run[R_STATE] == 'running' then return 'x' end"},
		"no worker will take a message":                    {"if not call('ZSCORE', POST, group) then call('ZADD', POST, ms, group) end", ""},
		"a new message ends the lease of the others":       {"if not call('ZSCORE', POST, group) then call", "if true then call"},
		"messages have one number":                         {"redis.pcall('HINCRBY', MAILED, 'number', n)", "redis.pcall('HINCRBY', MAILED, 'number', 0)"},
		"a target learns of all events":                    {"if events[event] and (event", "if (event"},
		"a target that had no message hears of a recovery": {"(event ~= 'recovered' or waits)", "true"},
		"no target waits for a recovery":                   {"then new = new .. '\\30' .. target end", "then end"},
		"a job recovers from one message twice":            {"call('HDEL', FACTS, 'n' .. job)\n", "\n"},
		"the first target alone has messages":              {"for i = 1, #list do\n    local one = list[i]", "for i = 1, math.min(#list, 1) do\n    local one = list[i]"},
		"a success is no recovery":                         {"or state == 'succeeded' and call('HEXISTS', FACTS, 'n' .. job) == 1", ""},
		"a batch that is taken again has more":             {"if noted == '' and (known", "if (known"},
		"a batch has no lease":                             {"call('ZADD', POST, format('%.0f', now + ARGV[2]), group)", ""},
		"a batch is forgotten when its sender dies":        {"call('ZADD', POST, format('%.0f', now + ARGV[2]), group)", "call('ZREM', POST, group)"},
		"a batch that is taken does not wait any more":     {"local n = #batches\n", "call('ZREM', MAIL, unpack(members))\n      local n = #batches\n"},
		"a batch is not noted":                             {"call('HSET', MAILED, 'batch:' .. group, P_TEXT{UPTO = last; TRIES = tries})", ""},
		"a worker takes what it cannot send":               {"local known = mine[target]", "local known = true"},
		"tries are forgotten":                              {"P_TEXT{UPTO = upto; TRIES = format('%d', tries + 1)}", "P_TEXT{UPTO = upto; TRIES = tries}"},
		"a late record ends the next batch":                {"if upto ~= ARGV[3] then", "if not upto then"},
		"a message that was sent waits":                    {"if #members > 0 then call('ZREM', MAIL, unpack(members)) end", ""},
		"a record ends later messages, too":                {"'[' .. group .. '\\0' .. upto .. '\\1')", "'(' .. group .. '\\1')"},
		"a request that failed counts as sent":             {"local outcome = ARGV[4]", "local outcome = 'sent'"},
		"a request that failed is not repeated":            {"< tonumber(ARGV[6]) and 'later' or 'over'", "< tonumber(ARGV[6]) and 'sent' or 'over'"},
		"a batch stays noted after it was sent":            {"call('HDEL', MAILED, 'batch:' .. group)\ncall", "call"},
		"each batch brings the same drops into the audit":  {"local silent = math.min(", "local silent = math.max("},
		"dropped messages are never in the audit":          {"audit((string.gsub(ARGV[9],", "tostring((string.gsub(ARGV[9],"},
		"the next batch waits for the lease of this one":   {"call('ZADD', POST, format('%.0f', now + ARGV[5]), group)\nreturn", "return"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			planted, old, fault := false, ledger.Expand(fault[0]), ledger.Expand(fault[1])
			options := *redistest.Client(t).Options()
			rdb := redis.NewClient(&options)
			t.Cleanup(func() {
				if err := rdb.Close(); err != nil {
					t.Error(err)
				}
			})
			rdb.AddHook(sourceHook{func(source string) string {
				planted = planted || strings.Contains(source, old)
				return strings.ReplaceAll(source, old, fault)
			}})
			for seed := range historiesFor(what, 40) {
				if found := playMessages(t, rdb, seed); found != "" {
					t.Logf("found in history %d: %s", seed, found)
					return
				}
			}
			if !planted {
				t.Fatalf("the fault is not in the scripts: %q is not there", old)
			}
			t.Error("no history found it")
		})
	}
}

// playMessages plays one history, and returns what is wrong with its messages.
func playMessages(t *testing.T, rdb *redis.Client, seed uint64) (found string) {
	t.Helper()
	f := &fixture{T: t, rdb: rdb, namespace: redistest.Namespace(t), job: newJob("j")}
	space, err := locks.NewSpace(rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	f.Ledger = ledger.New(rdb, space)
	p := newPlay(f, seed)
	p.finds = true
	defer func() {
		switch problem := recover().(type) {
		case nil:
		case foundFault:
			found = string(problem)
		default:
			panic(problem)
		}
	}()
	for range 100 {
		p.step()
		p.mailStep()
		p.checkRecords()
	}
	p.settleMail()
	return ""
}

// TestMessagesOfHistoriesWithoutFaultsAreRight is the same without a fault.
func TestMessagesOfHistoriesWithoutFaultsAreRight(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		if found := playMessages(t, redistest.Client(t), seed); found != "" {
			t.Errorf("history %d: %s", seed, found)
		}
	}
}
