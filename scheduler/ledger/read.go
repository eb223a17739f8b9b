package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/space"
)

// ErrUnknown means that the ledger has no such run or job (any more).
var ErrUnknown = errors.New("not in the ledger")

// Find returns one run and the output of its last attempt that has printed something, or
// [ErrUnknown].
func (l *Ledger) Find(ctx context.Context, id jobs.RunID) (*Record, string, error) {
	record, output, err := l.find(ctx, id, "")
	return record, output.Text, err
}

// FindRecord is [Ledger.Find] without the output, which may be long.
func (l *Ledger) FindRecord(ctx context.Context, id jobs.RunID) (*Record, error) {
	record, _, err := l.find(ctx, id, "0")
	return record, err
}

// FindOutput is [Ledger.Find] with the output of one attempt. Attempt 0 is the last one that has
// printed something.
func (l *Ledger) FindOutput(ctx context.Context, id jobs.RunID, attempt int) (*Record, Output, error) {
	which := ""
	if attempt != 0 {
		which = strconv.Itoa(attempt)
	}
	return l.find(ctx, id, which)
}

// Output is the end of what an attempt has printed. It is stored when the attempt ends, unless its
// worker has died or lost its lease.
type Output struct {
	Attempt int // 0: none is stored
	Text    string
}

// find returns one run and the output of an attempt, as find.lua takes it.
func (l *Ledger) find(ctx context.Context, id jobs.RunID, attempt string) (*Record, Output, error) {
	job := id.Job()
	fail := func(err error) (*Record, Output, error) { return nil, Output{}, fmt.Errorf("run %s: %w", id, err) }
	if job == "" {
		return fail(ErrUnknown)
	}
	r := space.Read(l.run(ctx, "find", job, string(id), attempt))
	outputOf := func() Output {
		text := r.Text()
		return Output{int(r.Number()), text}
	}
	switch outcome := outcomeOf(r); outcome {
	case "open":
		record, log, args, output := r.Text(), r.Text(), r.Text(), outputOf()
		if r.Err != nil {
			return fail(r.Err)
		}
		decoded, _, err := decode(id, record, log, args)
		if err != nil {
			decoded = unreadable(id, StateDue, err)
		}
		decoded.Parked = decoded.State.Final()
		return decoded, output, nil
	case "done":
		text, output := r.Text(), outputOf()
		if r.Err != nil {
			return fail(r.Err)
		}
		decoded, err := decodeFinal(id, text)
		if err != nil {
			decoded = unreadable(id, StateFailed, err)
		}
		return decoded, output, nil
	default:
		return fail(r.Unknown(outcome))
	}
}

// unreadable represents a run with a record that cannot be read: the sweep or its claim ends an
// outstanding one.
func unreadable(id jobs.RunID, state State, err error) *Record {
	record := &Record{ID: id, Job: id.Job(), Trigger: TriggerEnqueue, State: state, Reason: jobs.Cut(plain(err.Error()), jobs.MaxReason)}
	if tick, ok := id.Tick(); ok {
		record.Trigger, record.Tick = TriggerSchedule, tick
	}
	return record
}

// JobRecord is the ledger's record of one job.
type JobRecord struct {
	Job    *jobs.Job // the active definition
	Hash   string    // of Job
	Cursor time.Time // the last decided tick

	// "by ...", the actor and the reason; "" when it was not paused by hand; its definition may
	// also pause it
	Paused      string
	LastSuccess time.Time // zero: never
	Silent      time.Time // since when it had no success: the last one, or its first registration
	Drifted     bool      // a live worker carries another definition of it
	Uncarried   bool      // no worker carries it, and others are live
}

// jobsAtOnce is how many jobs are read in one round trip.
const jobsAtOnce = 500

// Jobs returns all jobs, by name. It is [Ledger.JobNames] and [Ledger.JobsOf].
func (l *Ledger) Jobs(ctx context.Context) ([]JobRecord, error) {
	names, err := l.JobNames(ctx)
	if err != nil {
		return nil, err
	}
	return l.JobsOf(ctx, names, nil)
}

// JobNames returns the names of all jobs, in their order. [Ledger.JobsOf] omits those of them that
// have no definition.
func (l *Ledger) JobNames(ctx context.Context) ([]string, error) {
	var all []string
	for at := uint64(0); ; {
		names, next, err := l.ScanJobs(ctx, at)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
		if at = next; at == 0 {
			slices.Sort(all)
			return slices.Compact(all), nil
		}
	}
}

// ScanJobs is one step of [Ledger.JobNames], which begins at 0, and returns where the next one
// begins; 0: nowhere. Names may come twice, in any order.
func (l *Ledger) ScanJobs(ctx context.Context, at uint64) (names []string, next uint64, err error) {
	// Each job has a cursor.
	cursors, next, err := l.rdb.HScan(ctx, l.prefix+"cursor", at, "", openPage).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("read the names of jobs: %w", l.space.Explain(err))
	}
	for i := 0; i < len(cursors); i += 2 {
		names = append(names, cursors[i])
	}
	return names, next, nil
}

// JobsOf returns some jobs, in the order of their names. It omits those without a definition. known
// returns the definition of a job with this hash if the caller has it, else nil; a nil known has
// none. JobsOf reads only definitions that the caller does not have: they are most of the cost.
func (l *Ledger) JobsOf(ctx context.Context, names []string, known func(job, hash string) *jobs.Job) ([]JobRecord, error) {
	records := make([]JobRecord, 0, len(names))
	for some := range slices.Chunk(names, jobsAtOnce) {
		read, err := l.jobsOf(ctx, some, known)
		if err != nil {
			return nil, fmt.Errorf("read jobs: %w", err)
		}
		records = append(records, read...)
	}
	return records, nil
}

func (l *Ledger) jobsOf(ctx context.Context, names []string, known func(job, hash string) *jobs.Job) ([]JobRecord, error) {
	fields := make([]string, 0, 3*len(names))
	for _, name := range names {
		fields = append(fields, "g"+name, "p"+name, "v"+name)
	}
	var cursors, facts *redis.SliceCmd
	var configs *redis.MapStringStringCmd
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		cursors, facts = pipe.HMGet(ctx, l.prefix+"cursor", names...), pipe.HMGet(ctx, l.prefix+"facts", fields...)
		configs = pipe.HGetAll(ctx, l.prefix+"ledger")
	})
	if err != nil {
		return nil, err
	}
	fact := func(i int) string { return textAt(facts, i) }
	definitions := make([]*jobs.Job, len(names))
	var missing []string
	for i, name := range names {
		if hash := hashOf(fact(3*i + 2)); known != nil && hash != "" {
			definitions[i] = known(name, hash)
		}
		if definitions[i] == nil {
			missing = append(missing, name)
		}
	}
	var texts, again *redis.SliceCmd // again: to notice a definition that changes meanwhile
	if len(missing) > 0 {
		hashes := make([]string, len(missing))
		for i, name := range missing {
			hashes[i] = "v" + name
		}
		err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
			texts, again = pipe.HMGet(ctx, l.prefix+"def", missing...), pipe.HMGet(ctx, l.prefix+"facts", hashes...)
		})
		if err != nil {
			return nil, err
		}
	}
	carried := carriedOf(configs.Val())
	records := make([]JobRecord, 0, len(names))
	read := 0 // of texts
	for i, name := range names {
		var err error
		job, changed := definitions[i], false
		if job == nil {
			text := textAt(texts, read)
			changed = hashOf(textAt(again, read)) != hashOf(fact(3*i+2))
			if read++; text == "" {
				continue
			}
			if job, err = jobs.ReadJob(text); err != nil {
				err = fmt.Errorf("definition of job %s: %w", name, err)
				job = new(jobs.Job)
			}
		}
		record, broken := recordOf(job, textAt(cursors, i), fact(3*i), fact(3*i+1), fact(3*i+2), carried)
		if err == nil {
			err = broken
		}
		if err != nil { // it must not hide the others
			record.Job = &jobs.Job{Name: name, Description: "unreadable: " + plain(err.Error())}
		}
		if changed || err != nil { // the hash is not that of this definition
			record.Hash = ""
		}
		records = append(records, record)
	}
	return records, nil
}

// hashOf returns the hash of the active definition, from the fact v of a job.
func hashOf(versions string) string {
	hash, _, _ := strings.Cut(versions, "\x1f")
	return hash
}

// textAt returns an element of a reply, or "" if there is none.
func textAt(reply *redis.SliceCmd, i int) string {
	text, _ := reply.Val()[i].(string) // else nil
	return text
}

// Job returns the record of one job, or [ErrUnknown].
func (l *Ledger) Job(ctx context.Context, name string) (JobRecord, error) {
	var definition, cursor *redis.StringCmd
	var facts *redis.SliceCmd
	var configs *redis.MapStringStringCmd
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		definition, cursor = pipe.HGet(ctx, l.prefix+"def", name), pipe.HGet(ctx, l.prefix+"cursor", name)
		facts = pipe.HMGet(ctx, l.prefix+"facts", "g"+name, "p"+name, "v"+name)
		configs = pipe.HGetAll(ctx, l.prefix+"ledger")
	})
	if errors.Is(err, redis.Nil) {
		return JobRecord{}, fmt.Errorf("job %s: %w", name, ErrUnknown)
	}
	if err != nil {
		return JobRecord{}, fmt.Errorf("read job %s: %w", name, err)
	}
	job, err := jobs.ReadJob(definition.Val())
	if err != nil {
		return JobRecord{}, fmt.Errorf("definition of job %s: %w", name, err)
	}
	return recordOf(job, cursor.Val(), textAt(facts, 0), textAt(facts, 1), textAt(facts, 2), carriedOf(configs.Val()))
}

// A config counts as carried if a worker polled with it within carriedWithin of the latest poll
// with any config: a worker polls every second.
const carriedWithin = 10 * time.Second

// carriedOf returns the digests of the configs that workers carry, from the key ledger.
func carriedOf(fields map[string]string) map[string]bool {
	var newest int64
	seen := make(map[string]int64)
	for field, value := range fields {
		if digest, is := strings.CutPrefix(field, "config:"); is {
			r := space.Read([]any{value}, nil)
			seen[digest] = r.Number()
			newest = max(newest, seen[digest])
		}
	}
	carried := make(map[string]bool)
	for digest, at := range seen {
		carried[digest] = newest-at <= carriedWithin.Milliseconds()
	}
	return carried
}

// standing reports whether another definition of a job than the active one is carried, and whether
// none is. versions is the value in facts.
func standing(versions string, carried map[string]bool) (drifted, uncarried bool) {
	entries := space.FieldsOf(versions)
	uncarried = true
	for _, entry := range entries[1:] {
		f, n := carriedLayout.Parse(entry)
		if n != carriedLayout.Fields() {
			continue
		}
		for digest := range strings.SplitSeq(f.Configs, ",") {
			if carried[digest] {
				uncarried = false
				drifted = drifted || f.Hash != entries[0]
			}
		}
	}
	return drifted, uncarried && len(carried) > 0
}

// recordOf returns the record of a job. cursor and the facts of the job are as they are stored.
func recordOf(job *jobs.Job, cursor, silent, paused, versions string, carried map[string]bool) (JobRecord, error) {
	r := space.Read([]any{cursor}, nil)
	record := JobRecord{Job: job, Hash: hashOf(versions), Cursor: r.Time(), Paused: paused}
	record.Drifted, record.Uncarried = standing(versions, carried)
	if silent != "" {
		since := space.Read([]any{silent[1:]}, nil)
		record.Silent = since.Time()
		if silent[0] == 's' {
			record.LastSuccess = record.Silent
		}
		r.Err = errors.Join(r.Err, since.Err)
	}
	return record, r.Err
}

// scan reads a whole hash in pages, so that no single command blocks Redis for long.
func (l *Ledger) scan(ctx context.Context, name string) (map[string]string, error) {
	all := make(map[string]string)
	for at := uint64(0); ; {
		pairs, next, err := l.rdb.HScan(ctx, l.prefix+name, at, "", openPage).Result()
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		if at = next; at == 0 {
			return all, nil
		}
	}
}
