package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TaskType is the asynq task type of all our deliveries. The colon distinguishes it from job names,
// which plain asynq clients may use as types.
const TaskType = "lockstep:run"

// payload is the content of a delivery. Its namespace identifies deliveries that went to the wrong
// place.
type payload struct {
	Namespace string     `json:"namespace"`
	Run       jobs.RunID `json:"run"`
	N         int64      `json:"n"`
}

// endless is the deadline of a delivery. asynq gives a task without timeout and deadline 30
// minutes.
var endless = time.Date(2200, time.January, 1, 0, 0, 0, 0, time.UTC)

// uncounted is more retries than a delivery can use up. asynq archives a task without retries
// before it checks whether the error counts.
const uncounted = 1_000_000

// taskID returns the ID of a delivery in asynq.
func taskID(d ledger.Due, namespace string) string {
	return namespace + ":" + string(d.Run) + "#" + strconv.FormatInt(d.N, 10)
}

func newTask(d ledger.Due, namespace string) (*asynq.Task, error) {
	if d.Run == "" {
		return nil, errors.New("delivery without a run")
	}
	if err := checkQueueName(d.Queue); err != nil {
		return nil, err
	}
	b, err := json.Marshal(payload{Namespace: namespace, Run: d.Run, N: d.N})
	if err != nil {
		return nil, err
	}
	return asynq.NewTask(TaskType, b,
		asynq.Queue(d.Queue),
		asynq.TaskID(taskID(d, namespace)),
		asynq.MaxRetry(uncounted),
		asynq.Deadline(endless),
	), nil
}

// messagePrefix is the beginning of our deliveries in asynq's encoding: field 1 of the protobuf
// message, the type, with its length. If a future encoding began differently, our deliveries would
// be fetched like foreign tasks, and pushed again.
var messagePrefix = "\x0a" + string(rune(len(TaskType))) + TaskType

// deliveryOf parses a delivery's ID in asynq, without the namespace.
func deliveryOf(id, queue string) ledger.Due {
	at := strings.LastIndexByte(id, '#')
	n, err := strconv.ParseInt(id[at+1:], 10, 64)
	if at < 0 || err != nil { // not pushed by lockstep: the ledger knows no such run
		return ledger.Due{Run: jobs.RunID(id), Queue: queue}
	}
	return ledger.Due{Run: jobs.RunID(id[:at]), N: n, Queue: queue}
}

func decode(data []byte) (payload, error) {
	var p payload
	if err := json.Unmarshal(data, &p); err != nil {
		return payload{}, err
	}
	if p.Namespace == "" || p.Run == "" {
		return payload{}, errors.New("namespace or run is missing")
	}
	return p, nil
}

// checkQueueName refuses names that asynq accepts and then handles badly: the name is the hash tag
// of the queue's keys.
func checkQueueName(name string) error {
	if strings.TrimSpace(name) == "" {
		return errors.New("queue name is empty")
	}
	if strings.ContainsAny(name, "{}") {
		return fmt.Errorf("queue %q: a name must not have braces", name)
	}
	return nil
}

// The keys of asynq that this package reads without asynq, whose inspector supports neither
// contexts nor leases. They are the same in all releases so far. A test compares the values with
// the inspector's.
const (
	queuesKey = "asynq:queues" // SET: every announced queue
)

func queueKey(queue, part string) string { return "asynq:{" + queue + "}:" + part }

func taskKey(queue, id string) string { return queueKey(queue, "t:"+id) }

// processedKey counts the tasks of a queue that ended on a day.
func processedKey(queue string, now time.Time) string {
	return queueKey(queue, "processed:"+now.Format(time.DateOnly))
}
