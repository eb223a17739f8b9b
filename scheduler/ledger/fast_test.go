package ledger_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// TestFastPathsDoWhatTheOthersDo plays random histories in which every script that has a fast path
// runs twice, from the same state and at the same time: without it, for the history, and with it,
// on a copy of all keys. The replies and all keys must be the same. Each fast path must also be
// taken often, for one run and for several.
func TestFastPathsDoWhatTheOthersDo(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	taken := make(map[string]int)
	for seed := range uint64(6) {
		twin := playTwins(t, server, seed, "", "")
		if twin.differs != "" {
			t.Errorf("seed %d: %s", seed, twin.differs)
		}
		for what, n := range twin.taken {
			taken[what] += n
		}
	}
	for _, what := range []string{"claim", "several of claim", "finish", "several of finish", "enqueue"} {
		if taken[what] < 5 {
			t.Errorf("the fast path of %s was taken %d times: %v", what, taken[what], taken)
		}
	}
}

// TestFaultsOfFastPathsAreFound plants faults in the fast paths, which such histories must find.
func TestFaultsOfFastPathsAreFound(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	for what, fault := range map[string][2]string{
		"a claim ignores the holders of its locks": {"if owners[i - first + 1] then set[list[i]] = true end", ""},
		"two claims take one lock together":        {"for i = run[2], run[3] do taken[names[i]] = true end", ""},
		"a claim overlooks what is due":            {"if live(session, ms) then", "if true then"},
		"a request loses its trace":                {"ARGV[15] .. ", ""},
		"a claim takes whatever n":                 {"local fit = n == ARGV[first + 4 * k - 2]", "local fit = n ~= nil"},
		"a claim takes a later attempt for the first": {"\\0310\\31\\31\\0310\\31\\31\\0310\\0310\\31([^\\31]*\\31\\31\\31",
			"\\031%d+\\31[^\\31]*\\31[^\\31]*\\031%d+\\31%d*\\31%d*\\31%d+\\31%d+\\31([^\\31]*\\31\\31[^\\31]*\\31"},
		"a tick passes earlier ones":                         {"tonumber(tick))) == 0", "tonumber(tick))) >= 0"},
		"a claim passes one that goes first":                 {"< rank then fit = false end", "< rank then fit = true end"},
		"a claim leaves its run due":                         {"call('ZREM', READY, unpack(ready))", ""},
		"a claim leaves its delivery to be pushed":           {"call('ZREM', PUSH, unpack(mine))", ""},
		"a claim keeps its n":                                {"'running\\31' .. format('%d', n + 1)", "'running\\31' .. n"},
		"a claim takes what its worker cannot run":           {"if runnable and not unread then", "if not unread then"},
		"a claim issues a token twice":                       {"token = token + 1", "token = token + 0"},
		"an attempt runs and nobody knows":                   {"call('ZADD', BUSY, unpack(busy))", ""},
		"a finish ends what was asked to stop":               {"[^\\31]*)\\31\\31\\31(x.*)$'\n  local several", "[^\\31]*)\\31[^\\31]*\\31\\31(x.*)$'\n  local several"},
		"a finish leaves the locks to nobody":                {"redis.call('HDEL', KEYS[2], unpack(list, first))", ""},
		"a finish keeps no end of its hold":                  {"keepEnd(at or clock[1]", "tostring(at or clock[1]"},
		"a finish passes its locks to no wait":               {" and noneIn(queues, bundles, run[13], run[14])", ""},
		"a finish looks at the first lock alone":             {"awaited(bundles, 1, #bundles)", "awaited(bundles, 1, 1)"},
		"a claim passes a request that waits":                {"awaited(list, first, last) or {}", "{}"},
		"a finish forgets the attempts before":               {"logs[e] and logs[e] .. ',' or ''", "''"},
		"a finish stores another session":                    {"log = '@' .. session", "log = '@' .. token"},
		"a finish omits fields that are not empty":           {"rest = match(rest, '^(.-)\\31*$')", "rest = ''"},
		"a finish omits the earlier attempts":                {"if byname and past == ''", "if byname or past == ''"},
		"a finish does not move the job's last success":      {"call('HSET', FACTS, 'g' .. ended[1][4], 's' .. ms)", ""},
		"a finish leaves its run in the index":               {"call('ZREM', OPEN, unpack(open))", ""},
		"a finish is recorded for several, without the runs": {"replies[k] = 1", "replies[1] = 1"},
		"an id asked for twice is two runs":                  {"call('HEXISTS', RUN, id) == 0 and call('HEXISTS', BODY, id) == 0 and", ""},
		"an id that has ended is asked for again":            {"call('HEXISTS', HIST, id) == 0 and", ""},
		"a request is not pushed when its maker has died":    {"call('ZADD', PUSH, ms, id)", ""},
		"a request does not count for its definition":        {"call('HINCRBY', DEFS, '#' .. name, 1)", "call('HSET', DEFS, '#' .. name, 1)"},
		"a request takes a definition that is not stored":    {"call('HSTRLEN', DEFS, '@' .. name) == #ARGV[9] - at", "true"},
		"a finish drops a definition in use":                 {"if redis.pcall('ZADD', MADE, 'XX', 'CH', ms, name) ~= 1 and type(redis.pcall('ZSCORE', MADE, name)) ~= 'string' then", "if true then"},
		"a finish does not note the last use of it":          {"redis.pcall('ZADD', MADE, 'XX', 'CH', ms, name) ~= 1 and", ""},
		"a finish does not name its definition":              {"sub(name, 1, 6)", "''"},
		"a finish counts one for all that end together":      {"'#' .. name, -n)", "'#' .. name, -1)"},
		"a claim brings a name that its worker lacks":        {"if runnable and mark then", "if false then"},
		"a finish is not counted":                            {"for trigger, n in pairs(triggers) do", "for trigger, n in pairs({}) do"},
		"a finish counts one run of all that end together":   {"(triggers[trigger] or 0) + 1", "1"},
		"a finish tells nobody of a recovery":                {"told = awaits", ""},
		"a finish keeps the mark of its targets":             {"string.byte(body, at - 1) == 32 and at - 2 or at - 1", "at - 1"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for seed := range historiesFor(what, 80) {
				if playTwins(t, server, seed, fault[0], fault[1]).differs != "" {
					t.Logf("found in history %d", seed)
					return
				}
			}
			t.Error("nobody has noticed it")
		})
	}
}

// playTwins plays one history with a fault in the fast paths, "" for none.
func playTwins(t *testing.T, server *redistest.Server, seed uint64, old, fault string) *twins {
	t.Helper()
	namespace := redistest.Namespace(t)
	twin := &twins{plain: server.Client(t), namespace: namespace, copy: redistest.Namespace(t), taken: make(map[string]int),
		scripts: make(map[string]ledger.FastPath)}
	planted := false
	for _, script := range ledger.FastPaths() {
		faulty := strings.Replace(script.Fast, old, fault, 1)
		if old != "" && faulty != script.Fast {
			script.Fast, planted = faulty, true
		}
		twin.scripts[script.Hash] = script
	}
	if old != "" && !planted {
		t.Fatalf("the fault is not in the scripts: %q is not there", old)
	}
	rdb := server.Client(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j")}
	f.lease = 10 * time.Minute // no renewal changes a key between a script and its twin
	if seed%8 == 7 {           // some of them with workers that name what they can run
		f.Limit(func(ledger.Need) bool { return true })
	}
	if seed%8 == 6 { // some beside an older build
		f.older()
	}
	p := newPlay(f, seed)
	p.plain, p.bills = true, 12
	for _, job := range p.ticking {
		job.StartDeadline, job.Lock = 0, jobs.Lock{}
	}
	rdb.AddHook(twin)
	for range 200 {
		p.step()
		if twin.differs != "" {
			break
		}
	}
	return twin
}

// twins is a hook that runs scripts with a fast path without it, and compares the result with that
// of the fast path on a copy.
type twins struct {
	plain           *redis.Client
	namespace, copy string
	scripts         map[string]ledger.FastPath // by digest

	taken   map[string]int // how often a fast path was taken
	differs string         // the first difference
}

func (w *twins) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *twins) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if script, ok := w.script(cmd); ok {
			w.run(ctx, script, cmd.(*redis.Cmd))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (w *twins) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			script, ok := w.script(cmd)
			if !ok {
				if err := next(ctx, []redis.Cmder{cmd}); err != nil {
					return err
				}
				continue
			}
			w.run(ctx, script, cmd.(*redis.Cmd))
		}
		return nil
	}
}

func (w *twins) script(cmd redis.Cmder) (ledger.FastPath, bool) {
	if cmd.Name() != "evalsha" {
		return ledger.FastPath{}, false
	}
	script, ok := w.scripts[cmd.Args()[1].(string)]
	return script, ok
}

const (
	copyKeys = `for _, key in ipairs(redis.call('KEYS', '{' .. ARGV[2] .. '}:*')) do redis.call('DEL', key) end
for _, key in ipairs(redis.call('KEYS', '{' .. ARGV[1] .. '}:*')) do
  redis.call('COPY', key, '{' .. ARGV[2] .. '}' .. string.sub(key, #ARGV[1] + 3))
end
return 1`
	readKeys = `local out = {}
for _, key in ipairs(redis.call('KEYS', '{' .. ARGV[1] .. '}:*')) do
  local kind, all = redis.call('TYPE', key).ok, nil
  if kind == 'hash' then
    all = redis.call('HGETALL', key)
  elseif kind == 'zset' then
    all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then
    all = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'stream' then
    all = {tostring(redis.call('XLEN', key))}
  else
    all = {redis.call('GET', key)}
  end
  out[#out + 1] = {string.sub(key, #ARGV[1] + 3), kind, all}
end
return out`
)

// run runs a script in both ways, and answers a command by the one without the fast path.
func (w *twins) run(ctx context.Context, script ledger.FastPath, cmd *redis.Cmd) {
	// All of it happens at one time, which a key contains.
	clock := "frozen:" + w.namespace
	frozen := func(source string) *redis.Script {
		return redis.NewScript(strings.ReplaceAll(source, "call('TIME')", "call('LRANGE', '"+clock+"', 0, 1)"))
	}
	if err := w.begin(ctx, clock); err != nil {
		cmd.SetErr(err)
		return
	}
	n, err := strconv.Atoi(fmt.Sprint(cmd.Args()[2]))
	if err != nil {
		cmd.SetErr(err)
		return
	}
	var keys, copies []string
	for _, key := range cmd.Args()[3 : 3+n] {
		keys = append(keys, key.(string))
		copies = append(copies, strings.Replace(key.(string), "{"+w.namespace+"}", "{"+w.copy+"}", 1))
	}
	args := cmd.Args()[3+n:]

	// With it: first alone, to see whether it is taken.
	fast, err := frozen(script.Fast+"\nreturn 'not taken'").Run(ctx, w.plain, copies, args...).Result()
	if err != nil {
		w.differs = "the fast path: " + err.Error()
		cmd.SetErr(err)
		return
	}
	var slow any
	switch several := script.Name != "enqueue" && (args[0] == "" || args[1] == ""); {
	case several:
		slow, err = w.several(ctx, script, frozen(script.Slow), keys, args, fast.([]any))
	case fast == "not taken":
		fast, err = frozen(script.Fast+script.Slow).Run(ctx, w.plain, copies, args...).Result()
		if err == nil {
			slow, err = frozen(script.Slow).Run(ctx, w.plain, keys, args...).Result()
		}
	default:
		w.taken[script.Name]++
		slow, err = frozen(script.Slow).Run(ctx, w.plain, keys, args...).Result()
	}
	if err != nil {
		w.differs = script.Name + ": " + err.Error()
		cmd.SetErr(err)
		return
	}
	cmd.SetVal(slow)
	if got, want := fmt.Sprintf("%q", fast), fmt.Sprintf("%q", slow); got != want {
		w.differs = fmt.Sprintf("%s %q answers %s, without its fast path %s", script.Name, args, got, want)
		return
	}
	w.compare(ctx, fmt.Sprintf("%s %q", script.Name, args))
}

// begin makes the copy and notes the time.
func (w *twins) begin(ctx context.Context, clock string) error {
	now, err := w.plain.Time(ctx).Result()
	if err != nil {
		return err
	}
	_, err = w.plain.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Del(ctx, clock)
		pipe.RPush(ctx, clock, now.Unix(), fmt.Sprintf("%06d", now.Nanosecond()/1000))
		pipe.Eval(ctx, copyKeys, nil, w.namespace, w.copy)
		return nil
	})
	return err
}

// several repeats one by one, without the fast path, what the fast path did for several; runs that
// it left alone stay alone.
func (w *twins) several(ctx context.Context, script ledger.FastPath, slow *redis.Script, keys []string, args, fast []any) (any, error) {
	answers := make([]any, len(fast))
	for k := range fast {
		var one []any
		history := keys
		if script.Name == "claim" {
			answers[k] = ""
			id := fmt.Sprint(args[2+4*k+1])
			one = []any{args[0], args[2+4*k], id, args[2+4*k+2], 0, 0, 0, args[2+4*k+3]}
			for _, name := range []string{"hist:", "done:", "output:", "made:"} {
				history = append(history[:len(history):len(history)], "{"+w.namespace+"}:"+name+strings.Split(strings.Split(id, "@")[0], "#")[0])
			}
		} else {
			answers[k] = int64(0)
			f := args[3+4*k:]
			one = []any{f[0], f[1], f[2], "succeeded", 0, "null", f[3], args[1], args[2]}
		}
		if fast[k] == answers[k] {
			continue
		}
		answer, err := slow.Run(ctx, w.plain, history, one...).Result()
		if err != nil {
			return nil, err
		}
		w.taken["several of "+script.Name]++
		answers[k] = answer
		if script.Name == "finish" {
			answers[k] = fmt.Sprint(answer)
			if answers[k] == "[recorded succeeded []]" {
				answers[k] = int64(1)
			}
		}
	}
	return answers, nil
}

// compare looks for a difference between all keys and their copies.
func (w *twins) compare(ctx context.Context, after string) {
	want, got := w.read(ctx, w.namespace), w.read(ctx, w.copy)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			w.differs = fmt.Sprintf("%s leaves %s as %s, without its fast path %s", after, key, got[key], want[key])
			return
		}
		delete(got, key)
	}
	for key, value := range got {
		w.differs = fmt.Sprintf("%s leaves %s as %s, which is not there without its fast path", after, key, value)
	}
}

func (w *twins) read(ctx context.Context, namespace string) map[string]string {
	reply, err := w.plain.Eval(ctx, readKeys, nil, namespace).Slice()
	if err != nil {
		w.differs = err.Error()
	}
	keys := make(map[string]string, len(reply))
	for _, one := range reply {
		parts := one.([]any)
		values := parts[2].([]any)
		if parts[1] == "hash" || parts[1] == "zset" { // pairs, in any order
			pairs := make([]any, 0, len(values)/2)
			for i := 0; i < len(values); i += 2 {
				pairs = append(pairs, fmt.Sprintf("%q=%q", values[i], values[i+1]))
			}
			slices.SortFunc(pairs, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
			values = pairs
		}
		keys[parts[0].(string)] = fmt.Sprint(values)
	}
	return keys
}

// TestLargeBundlesAreFinishedTogether ends runs at once that together hold more locks than Lua can
// unpack. A script that failed half-way would have removed their holds and left their locks taken.
func TestLargeBundlesAreFinishedTogether(t *testing.T) {
	each(t, func(f *fixture) {
		const runs, bills = 10, 900
		w := f.session("w")
		var finishes []ledger.Finish
		for i := range runs {
			var names []string
			for k := range bills {
				names = append(names, fmt.Sprintf("bill:%d-%03d", i, k))
			}
			a := f.claim(w, f.billed(fmt.Sprint(i), names...), ledger.ClaimGranted)
			finishes = append(finishes, ledger.Finish{
				Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: ledger.OutcomeSuccess,
			})
		}
		for i, finished := range f.FinishAll(f.Context(), finishes) {
			if finished == nil || finished.Verdict != ledger.FinishRecorded {
				f.Errorf("%s: %+v, want it recorded", finishes[i].Run, finished)
			}
		}
		f.wantNothingLeft()
	})
}

// TestLargeArgsAndOutputsSurviveTogether claims and finishes runs together that have more args, and
// more output, than one script reads or stores.
func TestLargeArgsAndOutputsSurviveTogether(t *testing.T) {
	each(t, func(f *fixture) {
		const runs = 16 // the last five have much output
		w := f.session("w")
		job := newJob("large")
		job.Every = 0
		// 32 to 128 KiB
		args := func(i int) string { return fmt.Sprintf("%q", strings.Repeat(string(rune('a'+i)), (i%4+1)<<15-2)) }
		// up to 160 KiB
		output := func(i int) string { return strings.Repeat(string(rune('A'+i)), 1+max(0, i-10)<<15) }
		var claims []ledger.Claim
		for i := range runs {
			enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue, Args: []byte(args(i))})
			if err != nil {
				f.Fatal(err)
			}
			claims = append(claims, ledger.Claim{Request: f.request(w), Due: enqueued.Due[0]})
		}
		var finishes []ledger.Finish
		for i, claimed := range f.ClaimAll(f.Context(), claims, 0) {
			if claimed == nil || claimed.Outcome != ledger.ClaimGranted {
				f.Fatalf("claim of %s: %+v, want it granted", claims[i].Due.Run, claimed)
			}
			if got := string(claimed.Args); got != args(i) {
				f.Errorf("%s got args %.10s... of %d bytes, want %.10s... of %d", claims[i].Due.Run, got, len(got), args(i), len(args(i)))
			}
			w.Extension().Freeing(claims[i].Request.Granted(f.Context(), claimed.Grant()))
			finishes = append(finishes, ledger.Finish{Run: claimed.Record.ID, Job: job, Token: claimed.Record.Last().Token,
				Hold: claims[i].Request.ID(), Outcome: ledger.OutcomeSuccess, Output: output(i)})
		}
		for i, finished := range f.FinishAll(f.Context(), finishes) {
			if finished == nil || finished.Verdict != ledger.FinishRecorded {
				f.Errorf("%s: %+v, want it recorded", finishes[i].Run, finished)
			}
			record, stored, err := f.Find(f.Context(), finishes[i].Run)
			if err != nil || record.State != ledger.StateSucceeded || string(record.Args) != args(i) || stored != output(i) {
				f.Errorf("%s is stored as %s with %d bytes of args and %d of output, %v; want it succeeded with %d and %d", finishes[i].Run,
					record.State, len(record.Args), len(stored), err, len(args(i)), len(output(i)))
			}
		}
		f.wantNothingLeft()
	})
}
