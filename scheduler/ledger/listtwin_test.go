package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// TestAListDoesWhatItsRequestsWouldDoAlone plays random lists, and tasks that a worker adopts
// together. The script for several requests runs on a copy of all keys, and the script for one
// request, for each of them, on the keys themselves, at the same time. The replies and all keys
// must be the same.
func TestAListDoesWhatItsRequestsWouldDoAlone(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	taken := make(map[string]int)
	for seed := range uint64(20) {
		twin := playLists(t, server, seed, "", "")
		if twin.differs != "" {
			t.Errorf("seed %d: %s", seed, twin.differs)
		}
		for what, n := range twin.taken {
			taken[what] += n
		}
	}
	for _, what := range []string{"created", "scheduled", "exists", "remembered", "adopted", "left to adopt"} {
		if taken[what] < 5 {
			t.Errorf("only %d requests were %s: %v", taken[what], what, taken)
		}
	}
}

// TestFaultsOfListsAreFound plants faults in the script for several requests, which such lists must
// find.
func TestFaultsOfListsAreFound(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	for what, fault := range map[string][2]string{
		"one request that exists spoils the others":  {"if #new == 0 then", "if #new < n then"},
		"half of an atomic list is recorded":         {"call('HSET', RUN, unpack(runs))", "call('HSET', RUN, unpack(runs, 1, #new - #new % 2))"},
		"an id asked for twice is two runs":          {"if states[i] or seen[id] then", "if states[i] then"},
		"a run of the history is made again":         {"look(ofJob(k), one[1]", "look(ofJob(1), one[1]"},
		"an id that is remembered is asked again":    {"tonumber(remembered[i]) > now", "tonumber(remembered[i]) < now"},
		"the ids of some are not remembered":         {"if lasts[k] then", "if lasts[1] then"},
		"a list counts one for all of a definition":  {"'#' .. name, more)", "'#' .. name, 1)"},
		"a later request is due at once":             {"at > now and 0 or 1", "1"},
		"a request is not pushed if its maker dies":  {"call('ZADD', PUSH, unpack(push))", ""},
		"a request goes to the queue of another one": {"inReady[k] = ARGV[at - 6]", "inReady[k] = ARGV[4]"},
		"a request has the parent of another one":    {"local parent = parents[k]", "local parent = parents[1]"},
		"a parent has one child of a list":           {"n + #ids", "n + 1"},
		"the trace context of a request is lost":     {".. traces[k]", ""},
		"a run is in no index":                       {"call('ZADD', OPEN, unpack(open))", ""},
		"a list forgets nothing":                     {"forget(100)", ""},
		"a definition is kept for another job":       {"ofJob(k)\n      keepMade", "ofJob(1)\n      keepMade"},
		"a delivery that comes again is a new one":   {"if session ~= '' then keep", "if false then keep"},
		"a task with an id of the past is new":       {"(session ~= '' or tonumber(remembered[i]) > now)", "tonumber(remembered[i]) > now"},
		"a session adopts after its end":             {"not ends(session)", "false"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for seed := range historiesFor(what, 20) {
				if playLists(t, server, seed, fault[0], fault[1]).differs != "" {
					t.Logf("found in history %d", seed)
					return
				}
			}
			t.Error("nothing has found it")
		})
	}
}

// listTwins runs each script for several requests on a copy, and that for one request instead.
type listTwins struct {
	twins
	several, one, adopted, hash string
}

func (w *listTwins) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == w.hash && w.differs == "" {
			w.run(ctx, cmd.(*redis.Cmd))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (w *listTwins) run(ctx context.Context, cmd *redis.Cmd) {
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
	got, err := frozen(w.several).Run(ctx, w.plain, copies, args...).Slice()
	if err != nil {
		w.differs = "the script for several: " + err.Error()
		cmd.SetErr(err)
		return
	}
	kinds, session := args[1].(int), args[len(args)-2].(string)
	want := make([]any, 0, len(got))
	for at := 2 + 10*kinds; at < len(args)-5; at += 5 {
		kind, request := args[2+10*(args[at].(int)-1):], args[at:]
		own := keys[:indexOf(keys, "}:lists")]
		for _, name := range []string{"hist:", "done:", "output:", "made:"} {
			own = append(own[:len(own):len(own)], "{"+w.namespace+"}:"+name+fmt.Sprint(kind[0]))
		}
		if session != "" {
			one, err := w.adopt(ctx, frozen(w.adopted), own, session, kind, request, got, len(want))
			if err != nil {
				w.differs = "the script for one task: " + err.Error()
				cmd.SetErr(err)
				return
			}
			if want = append(want, one); one == "dead" {
				break
			}
			continue
		}
		start, pause, _ := strings.Cut(request[2].(string)+" 0 0", " ")
		if request[2] == "" {
			start, pause = "0", "0"
		}
		pause, _, _ = strings.Cut(pause, " ")
		parent, _, _ := strings.Cut(kind[4].(string), " ")
		single := []any{kind[0], request[1], kind[1], kind[2], start, pause, kind[3], request[3], fmt.Sprint(kind[5], us, kind[6]), kind[7], kind[8], kind[9], "", parent, kind[4].(string)[len(parent):]}
		for _, item := range strings.Split(request[4].(string), us) {
			single = append(single, item)
		}
		if parent != "" {
			own = append(own, "{"+w.namespace+"}:children")
		}
		reply, err := frozen(w.one).Run(ctx, w.plain, own, single...).Slice()
		if err != nil {
			w.differs = "the script for one: " + err.Error()
			cmd.SetErr(err)
			return
		}
		switch {
		case reply[0] == "exists":
			want = append(want, reply[1])
			w.taken["exists"]++
			if reply[1] == "" {
				w.taken["remembered"]++
			}
		case reply[2] == "scheduled":
			want = append(want, int64(0))
			w.taken["scheduled"]++
		default:
			want = append(want, int64(1))
			w.taken["created"]++
		}
	}
	cmd.SetVal(want)
	if g, alone := fmt.Sprintf("%q", got), fmt.Sprintf("%q", want); g != alone {
		w.differs = fmt.Sprintf("%q answers %s, its requests alone %s", args, g, alone)
		return
	}
	w.compare(ctx, fmt.Sprintf("%q", args))
}

// adopt adopts one request of several, unless the script for several has left it to that: then it
// must not be new.
func (w *listTwins) adopt(ctx context.Context, script *redis.Script, keys []string, session string, kind, request, got []any, i int) (any, error) {
	id := request[1].(string)
	known := w.plain.ZScore(ctx, "{"+w.namespace+"}:ids", id).Err() == nil ||
		w.plain.HExists(ctx, "{"+w.namespace+"}:run", id).Val() || w.plain.HExists(ctx, fmt.Sprint("{", w.namespace, "}:hist:", kind[0]), id).Val()
	if known {
		w.taken["left to adopt"]++
		if i < len(got) && got[i] != int64(1) {
			return got[i], nil
		}
		return "an id that is not new", nil
	}
	args := []any{kind[0], id, session, request[2], "0", kind[1], kind[3], "", request[3], fmt.Sprint(kind[5], us, kind[6]), kind[7], kind[8], kind[9], "100", "1000", ledger.GeneratedFor.Milliseconds(), kind[4], "0"}
	for _, item := range strings.Split(request[4].(string), us) {
		if item != "xrun:"+id {
			args = append(args, item)
		}
	}
	reply, err := script.Run(ctx, w.plain, keys, args...).Slice()
	switch {
	case err != nil:
		return nil, err
	case reply[0] == "dead":
		return "dead", nil
	case reply[0] != "created" || reply[2] != "1":
		return fmt.Sprintf("%q", reply), nil
	}
	w.taken["adopted"]++
	return int64(1), nil
}

// indexOf returns the index of the first key with a part.
func indexOf(keys []string, part string) int {
	for i, key := range keys {
		if strings.Contains(key, part) {
			return i
		}
	}
	return len(keys)
}

// playLists plays one history of lists with a fault in the script, "" for none.
func playLists(t *testing.T, server *redistest.Server, seed uint64, old, fault string) *listTwins {
	t.Helper()
	namespace := redistest.Namespace(t)
	twin := &listTwins{twins: twins{plain: server.Client(t), namespace: namespace, copy: redistest.Namespace(t), taken: make(map[string]int)}}
	twin.several, twin.one, twin.adopted, twin.hash = ledger.ListScripts()
	if old != "" {
		faulty := strings.Replace(twin.several, old, fault, 1)
		if faulty == twin.several {
			t.Fatalf("the fault is not in the script: %q is not there", old)
		}
		twin.several = faulty
	}
	rdb := server.Client(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j")}
	f.lease = 10 * time.Minute
	if seed%4 == 3 {
		f.older()
	}
	client := f.session("w")
	rdb.AddHook(twin)
	r, tasks := rand.New(rand.NewPCG(seed, 7)), rand.New(rand.NewPCG(seed, 8))
	var due []ledger.Due
	var known []jobs.RunID
	for range 15 {
		if tasks.IntN(3) == 0 {
			replies := f.AdoptAll(t.Context(), f.randomTasks(tasks, client))
			if twin.differs != "" {
				break
			}
			for _, reply := range replies {
				if reply.Err != nil && !errors.Is(reply.Err, ledger.ErrSession) {
					t.Fatal(reply.Err)
				}
				if reply.Enqueued != nil {
					due, known = append(due, reply.Due...), append(known, reply.Run)
				}
			}
		}
		list := ledger.List{Atomic: r.IntN(2) == 0}
		var parents []jobs.RunID
		if len(known) > 0 {
			parents = []jobs.RunID{known[r.IntN(len(known))]}
		}
		for range 1 + r.IntN(8) {
			list.Items = append(list.Items, f.randomRequest(r, parents))
		}
		oneKind(list.Items)
		for i := range list.Items { // alone, the parent would come first
			for _, other := range list.Items {
				if list.Items[i].Parent == jobs.RequestRunID(other.Job.Name, other.ID) {
					list.Items[i].Parent = ""
				}
			}
		}
		ctx := t.Context()
		if r.IntN(2) == 0 {
			ctx = requester.In(ctx)
		}
		replies, err := f.EnqueueAll(ctx, list)
		if twin.differs != "" {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, reply := range replies {
			if reply.Err != nil {
				t.Fatal(reply.Err)
			}
			due, known = append(due, reply.Due...), append(known, reply.Run)
		}
		for range min(len(due), r.IntN(6)) { // some end: they are in a history, or only remembered
			d := pick(r, &due)
			f.finish(f.claim(client, d, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
			if r.IntN(2) == 0 {
				rdb.HDel(t.Context(), f.key("hist:"+d.Run.Job()), string(d.Run))
			}
		}
		if r.IntN(3) == 0 && len(known) > 0 { // its time is over
			rdb.ZAdd(t.Context(), f.key("ids"), redis.Z{Score: 1, Member: string(known[r.IntN(len(known))])})
		}
	}
	return twin
}

// oneKind makes the requests with a parent alike: only runs of one kind are its children in the
// order of their requests.
func oneKind(items []ledger.Request) {
	var first *ledger.Request
	for i := range items {
		switch item := &items[i]; {
		case item.Parent == "":
		case first == nil:
			first = item
		default:
			item.Job, item.Trigger, item.Named = first.Job, first.Trigger, first.Named
		}
	}
}

// randomTasks returns tasks that a worker adopts together. Some ids repeat, and few workers are
// dead.
func (f *fixture) randomTasks(r *rand.Rand, client *locks.Client) []ledger.Adoption {
	all := make([]ledger.Adoption, 2+r.IntN(8))
	for i := range all {
		request := f.randomRequest(r, nil)
		id := fmt.Sprint(r.IntN(6))
		if r.IntN(3) == 0 || slices.ContainsFunc(all[:i], func(other ledger.Adoption) bool { return other.ID == id }) {
			id = generatedID()
		}
		all[i] = f.given(client, id)
		all[i].Job, all[i].Queue = request.Job, request.Job.Queue
		if r.IntN(3) == 0 {
			all[i].Trace = requester
		}
	}
	if r.IntN(3) == 0 { // its time is over
		run := jobs.RequestRunID(all[0].Job.Name, ledger.AdoptedName(all[0].Queue, all[0].ID))
		f.rdb.ZAdd(f.Context(), f.key("ids"), redis.Z{Score: 1, Member: string(run)})
	}
	if r.IntN(6) == 0 {
		for i := range all {
			all[i].Session = "dead.1"
		}
	}
	return all
}

// randomRequest returns a request for a run of one of two jobs. Some ids repeat.
func (f *fixture) randomRequest(r *rand.Rand, parents []jobs.RunID) ledger.Request {
	job := newJob([]string{"a", "b"}[r.IntN(2)])
	job.Every = 0
	job.Queue = []string{"default", "slow"}[r.IntN(2)]
	if r.IntN(2) == 0 {
		job.Lock.Exclusive = []string{fmt.Sprint("bill:", f.T.Name(), r.IntN(1000000))}
	}
	request := ledger.Request{Job: job, ID: fmt.Sprint(r.IntN(40)), Trigger: ledger.TriggerEnqueue, Named: r.IntN(2) == 0}
	if r.IntN(4) == 0 {
		request.Trigger = ledger.TriggerHand
	}
	switch r.IntN(5) {
	case 0:
		request.In = time.Hour
	case 1:
		request.At = time.Now().Add(time.Duration(r.IntN(3)-1) * time.Hour)
	}
	if len(parents) > 0 && r.IntN(2) == 0 {
		request.Parent = parents[r.IntN(len(parents))]
	}
	return request
}
