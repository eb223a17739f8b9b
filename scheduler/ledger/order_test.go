package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// startProcess returns the ledger of a worker's process that has just been started: it remembers
// what it registers.
func (f *fixture) startProcess() *fixture {
	f.Helper()
	own := *f
	own.Ledger = ledger.New(f.rdb, f.Space())
	own.Remember()
	return &own
}

// deploys registers a definition as the worker with a config does, and changes its trigger if
// necessary. The definition must become active.
func (f *fixture) deploys(config string, job *jobs.Job) {
	f.Helper()
	registered, err := f.Register(f.Context(), config, []*jobs.Job{job})
	if err != nil {
		f.Fatal(err)
	}
	if one := registered.Jobs[job.Name]; one.Standing == ledger.StandingChange {
		activated := f.activates(ledger.Activation{Job: job, From: one.Old, Seen: one.Cursor, Cursor: one.Cursor})
		if activated.Moved || activated.Early || activated.Inactive {
			f.Fatalf("%+v, want the trigger changed", activated)
		}
	}
	f.carries(config, job, ledger.StandingActive)
}

// TestAnAbsentWorkerReturnsBehindTheNewerDefinition: the worker was unreachable for so long that
// its definition gave way. Only a worker that is started with that definition takes the newer one
// back, and then the absent worker returns with it.
func TestAnAbsentWorkerReturnsBehindTheNewerDefinition(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 7 * time.Second} {
		t.Run(fmt.Sprintf("from every 1s to every %s", every), func(t *testing.T) {
			each(t, func(f *fixture) {
				v := versions("older", "newer")
				v[1].Every = every
				older, newer, started := f.startProcess(), f.startProcess(), f.startProcess()
				older.deploys("old", v[0])
				newer.deploys("new", v[1])
				f.left("old", 70*time.Second)
				newer.carries("new", v[1], ledger.StandingActive)
				older.carries("old", v[0], ledger.StandingDrifted)
				newer.carries("new", v[1], ledger.StandingActive)

				f.left("old", 70*time.Second)
				newer.carries("new", v[1], ledger.StandingActive)
				started.deploys("started", v[0])
				older.carries("old", v[0], ledger.StandingActive)
				newer.carries("new", v[1], ledger.StandingDrifted)

				// It has learned that its definition is the newest now.
				f.left("old", 70*time.Second)
				f.left("started", 70*time.Second)
				newer.deploys("new", v[1])
				older.deploys("old", v[0])
				newer.carries("new", v[1], ledger.StandingDrifted)
			})
		})
	}
}

// TestDefinitionsOfManyBatchesKeepTheirOrders: each job has an order of its own.
func TestDefinitionsOfManyBatchesKeepTheirOrders(t *testing.T) {
	each(t, func(f *fixture) {
		const n = 2*ledger.RegisterBatch + 10
		var before, after []*jobs.Job
		for i := range n {
			job := newJob(fmt.Sprintf("job%03d", i))
			next := *job
			next.Description = "changed"
			before, after = append(before, job), append(after, &next)
		}
		a, b := f.startProcess(), f.startProcess()
		standings := func(when string, p *fixture, config string, list []*jobs.Job, want func(i int) ledger.Standing) {
			f.Helper()
			registered, err := p.Register(f.Context(), config, list)
			if err != nil {
				f.Fatal(err)
			}
			for i, job := range list {
				if got := registered.Jobs[job.Name].Standing; got != want(i) {
					f.Fatalf("%s, %s is %s with config %s, want %s", when, job.Name, got, config, want(i))
				}
			}
		}
		active := func(int) ledger.Standing { return ledger.StandingActive }
		odd := func(when ledger.Standing, other ledger.Standing) func(int) ledger.Standing {
			return func(i int) ledger.Standing {
				if i%2 == 1 {
					return when
				}
				return other
			}
		}
		var both []*jobs.Job // of odd jobs the definition after, of others the one before
		for i := range n {
			both = append(both, before[i])
			if i%2 == 1 {
				both[i] = after[i]
			}
		}
		standings("at first", a, "a", both, active)
		var others []*jobs.Job
		for i := range n {
			others = append(others, after[i])
			if i%2 == 1 {
				others[i] = before[i]
			}
		}
		standings("at first", b, "b", others, active)
		// Of half of the jobs, a gets the newest definition back.
		f.left("b", 70*time.Second)
		var some []*jobs.Job
		for i := 1; i < n; i += 2 {
			some = append(some, both[i])
		}
		standings("while b is absent", a, "a", some, active)
		standings("when b has returned", b, "b", others, active)
		f.left("a", 70*time.Second)
		standings("while a is absent", b, "b", others, active)
		standings("when a has returned", a, "a", both, func(int) ledger.Standing { return ledger.StandingDrifted })
		c := f.startProcess()
		f.left("a", 70*time.Second)
		standings("while a is absent again", b, "b", others, active)
		standings("when c is started", c, "c", some, active)
		standings("when a has returned again", a, "a", both, odd(ledger.StandingActive, ledger.StandingDrifted))
	})
}

// TestALossOfDataKeepsTheOrderOfDefinitions: whichever worker comes first, the newest definition is
// active. A definition that is new then is newer than all of them.
func TestALossOfDataKeepsTheOrderOfDefinitions(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("older", "newer", "newest")
		older, newer := f.worker("older"), f.worker("newer")
		asserts := func(w *worker, config string, job *jobs.Job) {
			f.Helper()
			if err := w.Assert(f.Context(), w.client.Session(), w.lost, config, []*jobs.Job{job}); err != nil {
				f.Fatal(err)
			}
		}
		older.carries("old", v[0], ledger.StandingActive)
		newer.carries("new", v[1], ledger.StandingActive)
		for _, olderFirst := range []bool{true, false} {
			f.lose(older, newer)
			if olderFirst {
				asserts(older, "old", v[0])
				asserts(newer, "new", v[1])
			} else {
				asserts(newer, "new", v[1])
				asserts(older, "old", v[0])
			}
			f.goOn()
			older.carries("old", v[0], ledger.StandingDrifted)
			newer.carries("new", v[1], ledger.StandingActive)
		}

		f.lose(older, newer)
		f.goOn()
		started := f.startProcess()
		started.carries("started", v[2], ledger.StandingActive)
		newer.carries("new", v[1], ledger.StandingDrifted)
		older.carries("old", v[0], ledger.StandingDrifted)
		started.carries("started", v[2], ledger.StandingActive)
	})
}

// TestALostRegistrationOfAnOlderDefinitionReturns: a failover loses that a worker was started with
// an older definition, and Redis still has the first registration of that one.
func TestALostRegistrationOfAnOlderDefinitionReturns(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("older", "newer")
		older, newer := f.startProcess(), f.startProcess()
		older.carries("old", v[0], ledger.StandingActive)
		newer.carries("new", v[1], ledger.StandingActive)
		before := f.rdb.HGetAll(f.Context(), f.key("facts")).Val()
		f.left("old", 70*time.Second)
		newer.carries("new", v[1], ledger.StandingActive)
		started := f.startProcess()
		started.carries("old", v[0], ledger.StandingActive)
		if err := f.rdb.HSet(f.Context(), f.key("facts"), before).Err(); err != nil {
			f.Fatal(err)
		}
		started.carries("old", v[0], ledger.StandingActive)
		newer.carries("new", v[1], ledger.StandingDrifted)
	})
}

// TestOrdersOfOlderBuildsStayBelowLaterOnes: an older build numbers definitions from 1, and adds 1
// to the last order of any build. It brings no order when it returns.
func TestOrdersOfOlderBuildsStayBelowLaterOnes(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("older", "newer", "newest")
		older, newer := f.startProcess(), f.startProcess()
		// registers adds a definition as an older build does
		registers := func(config string, i int, text string) {
			f.Helper()
			order, err := f.rdb.HIncrBy(f.Context(), f.key("ledger"), "order", 1).Result()
			if err != nil {
				f.Fatal(err)
			}
			hash, err := ledger.Hash(v[i])
			if err != nil {
				f.Fatal(err)
			}
			if text == "" {
				text = hash
			}
			text += fmt.Sprintf("\x1f%s\x1e%d\x1eevery 1s\x1e%s", hash, order, config)
			if err := f.rdb.HSet(f.Context(), f.key("facts"), "vj", text).Err(); err != nil {
				f.Fatal(err)
			}
			f.left(config, 0)
		}
		f.carries("old", v[0], ledger.StandingActive)
		f.rdb.HDel(f.Context(), f.key("ledger"), "order")
		registers("old", 0, "")
		newer.carries("new", v[1], ledger.StandingActive)
		older.carries("old", v[0], ledger.StandingDrifted)
		registers("newest", 2, f.rdb.HGet(f.Context(), f.key("facts"), "vj").Val())
		f.carries("newest", v[2], ledger.StandingActive)
		newer.carries("new", v[1], ledger.StandingDrifted)

		// The process knows only the order that the older build gave to its definition.
		f.left("old", 70*time.Second)
		newer.carries("new", v[1], ledger.StandingDrifted)
		older.carries("old", v[0], ledger.StandingDrifted)
		f.left("newest", 70*time.Second)
		newer.carries("new", v[1], ledger.StandingActive)
		f.carries("newest", v[2], ledger.StandingActive)
	})
}

// TestAReloadBringsAnOlderDefinitionBack, as a start does: with a config between the two that has
// another definition of the job, or none.
func TestAReloadBringsAnOlderDefinitionBack(t *testing.T) {
	for name, between := range map[string][]*jobs.Job{"another definition": versions("between"), "none": nil} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				v := versions("older", "newer")
				reloads := func(p *fixture, config string, list []*jobs.Job) {
					f.Helper()
					_, definitions, err := ledger.Digest(list)
					if err != nil {
						f.Fatal(err)
					}
					if _, err := p.Register(f.Context(), config, list); err != nil {
						f.Fatal(err)
					}
					p.Carries(definitions)
				}
				stays, returns, newer := f.startProcess(), f.startProcess(), f.startProcess()
				reloads(stays, "stays", v[:1])
				reloads(returns, "returns", v[:1])
				reloads(stays, "stays reloaded", append([]*jobs.Job{newJob("other")}, v[0]))
				reloads(returns, "between", between)
				newer.carries("new", v[1], ledger.StandingActive)
				gone := []string{"stays", "stays reloaded", "returns", "between"}
				for _, config := range gone {
					f.left(config, 70*time.Second)
				}
				newer.carries("new", v[1], ledger.StandingActive)
				stays.carries("stays reloaded", v[0], ledger.StandingDrifted)
				for _, config := range gone {
					f.left(config, 70*time.Second)
				}
				newer.carries("new", v[1], ledger.StandingActive)
				returns.carries("returns", v[0], ledger.StandingActive)
			})
		})
	}
}

// A deployed process carries one definition of the job.
type deployedProcess struct {
	*fixture
	config  string
	version int
	rank    int // of the definition, when the process last registered it
	present bool
}

// randomDeploys plays workers that start, are absent, return, and end, and losses of all data. A
// definition has a rank: the moment at which a worker was last started with it while Redis did not
// know it.
type randomDeploys struct {
	*fixture
	rand      *rand.Rand
	versions  []*jobs.Job
	processes []*deployedProcess
	known     map[int]int // by version, the rank of what Redis knows
	started   int
	log       []string
}

func (d *randomDeploys) register(p *deployedProcess) {
	d.Helper()
	if _, err := p.Register(d.Context(), p.config, []*jobs.Job{d.versions[p.version]}); err != nil {
		d.Fatal(err)
	}
	p.present = true
	p.rank = max(p.rank, d.known[p.version])
	if p.rank == 0 {
		d.started++
		p.rank = d.started
	}
	d.known[p.version] = p.rank
}

// start begins a process and, without a reply of the others, registers its definition.
func (d *randomDeploys) start() {
	d.Helper()
	p := &deployedProcess{fixture: d.startProcess(), config: fmt.Sprint("config", len(d.log)), version: d.rand.IntN(len(d.versions))}
	d.processes = append(d.processes, p)
	d.log = append(d.log, fmt.Sprintf("%s starts with %d", p.config, p.version))
	d.register(p)
}

// settle has every present worker register its definition twice: the newest one may come last.
func (d *randomDeploys) settle() {
	d.Helper()
	newest, carried := -1, make(map[int]int)
	for range 2 {
		for _, i := range d.rand.Perm(len(d.processes)) {
			if p := d.processes[i]; p.present {
				d.register(p)
				carried[p.version] = p.rank
			}
		}
	}
	if len(carried) == 0 {
		return
	}
	for version := range d.versions {
		if carried[version] > 0 && (newest < 0 || carried[version] > carried[newest]) {
			newest = version
		}
	}
	d.known = carried
	record, err := d.Job(d.Context(), "j")
	if err != nil {
		d.Fatal(err)
	}
	if want := d.versions[newest].Description; record.Job.Description != want {
		d.Fatalf("definition %s is active, want %s, of those with the ranks %v, after\n%s", record.Job.Description, want, carried, strings.Join(d.log, "\n"))
	}
}

func (d *randomDeploys) step() {
	d.Helper()
	pick := func(present bool) *deployedProcess {
		var some []*deployedProcess
		for _, p := range d.processes {
			if p.present == present {
				some = append(some, p)
			}
		}
		if len(some) == 0 {
			return nil
		}
		return some[d.rand.IntN(len(some))]
	}
	switch n := d.rand.IntN(20); {
	case n < 6 && len(d.processes) < 5:
		d.start()
	case n < 11:
		if p := pick(true); p != nil {
			d.log = append(d.log, p.config+" is absent")
			d.left(p.config, 70*time.Second)
			p.present = false
		}
	case n < 16:
		if p := pick(false); p != nil {
			d.log = append(d.log, p.config+" returns")
			d.register(p)
		}
	case n < 18:
		if p := pick(false); p != nil {
			d.log = append(d.log, p.config+" ends")
			d.processes = slices.DeleteFunc(d.processes, func(other *deployedProcess) bool { return other == p })
		}
	default:
		d.log = append(d.log, "all data is lost")
		keys, err := d.rdb.Keys(d.Context(), d.key("*")).Result()
		if err == nil && len(keys) > 0 {
			err = d.rdb.Del(d.Context(), keys...).Err()
		}
		if err != nil {
			d.Fatal(err)
		}
		clear(d.known)
		if d.rand.IntN(2) == 0 {
			d.start()
		}
	}
	d.settle()
}

// TestRandomDeploysFollowTheOrderOfDefinitions: after each step, the active definition is the one
// with the highest rank that a present worker carries.
func TestRandomDeploysFollowTheOrderOfDefinitions(t *testing.T) {
	each(t, func(f *fixture) {
		for seed := range uint64(3) {
			d := &randomDeploys{fixture: &fixture{T: f.T, rdb: f.rdb, namespace: fmt.Sprint(f.namespace, seed)}, rand: rand.New(rand.NewPCG(seed, 28)),
				versions: versions("zero", "one", "two"), known: make(map[int]int)}
			space, err := locks.NewSpace(f.rdb, d.namespace)
			if err != nil {
				f.Fatal(err)
			}
			d.Ledger = ledger.New(f.rdb, space)
			for range 60 {
				d.step()
			}
		}
	})
}

// TestARevertTakesADeployBack although the definitions of the config that returns were not dropped
// from the ledger, since no registration came in between.
func TestARevertTakesADeployBack(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("older", "newer")
		f.startProcess().carries("old", v[0], ledger.StandingActive)
		newer := f.startProcess()
		newer.carries("new", v[1], ledger.StandingActive)
		f.left("old", 70*time.Second)
		started, twin := f.startProcess(), f.startProcess()
		started.carries("old", v[0], ledger.StandingActive)
		newer.carries("new", v[1], ledger.StandingDrifted)
		twin.carries("old", v[0], ledger.StandingActive)
	})
}

// TestTwinsOfAConfigThatReturnsBeginItsJobsAnew: each of two workers registers some of the jobs
// while the other has not registered them.
func TestTwinsOfAConfigThatReturnsBeginItsJobsAnew(t *testing.T) {
	each(t, func(f *fixture) {
		list := []*jobs.Job{newJob("a"), newJob("b"), newJob("c")}
		_, all, err := ledger.Digest(list)
		if err != nil {
			f.Fatal(err)
		}
		none := func(string, string) *jobs.Job { return nil }
		registers := func(p *fixture, some []*ledger.Encoded, last bool) map[string]ledger.RegisteredJob {
			f.Helper()
			registered, err := p.RegisterEncoded(f.Context(), "config", some, last, none)
			if err != nil {
				f.Fatal(err)
			}
			return registered.Jobs
		}
		registers(f.startProcess(), all, true)
		f.left("config", 100*time.Second)
		f.present("other", 90*time.Second, 0)
		first, second := f.startProcess(), f.startProcess()
		anew := func(who string, got map[string]ledger.RegisteredJob, want bool) {
			f.Helper()
			for name, job := range got {
				if (job.Absence != nil) != want {
					f.Errorf("%s registers %s: absence %v, want one: %v", who, name, job.Absence, want)
				}
			}
		}
		anew("the first", registers(first, all[:1], false), true)
		anew("the second", registers(second, all[1:2], false), true)
		began := registers(first, all[1:], true)
		again := registers(second, all, true)
		for name, job := range began {
			if !again[name].Cursor.Equal(job.Cursor) || job.Absence == nil {
				f.Errorf("%s begins at %v with absence %v, and then at %v; want it to begin once", name, job.Cursor, job.Absence, again[name].Cursor)
			}
		}
	})
}
