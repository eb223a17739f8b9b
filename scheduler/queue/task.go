package queue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"lockstep/scheduler/trace"
)

// task is a foreign task, as asynq stores it.
type task struct {
	Request
	message   string
	unique    string        // key of its unique lock, or ""
	retention time.Duration // for which asynq keeps it once it is complete
}

// The fields of asynq's TaskMessage, in asynq.proto. The inspector decodes them too, but reads one
// task per round trip. A test compares both.
const (
	fieldType        = 1
	fieldPayload     = 2
	fieldRetried     = 6
	fieldDeadline    = 9  // Unix seconds; 0: none
	fieldUnique      = 10 // key of the unique lock
	fieldRetention   = 12 // seconds
	fieldCompletedAt = 13 // Unix seconds
	fieldHeaders     = 15 // a map: for each header a message of key and value
)

// wordText is the length of the random part of a task's word; take.lua appends two digits.
const wordText = 24

// readTask decodes the message of a task. word is as take.lua returns it; now is the server's time.
func readTask(queue, id, message, word string, now time.Time) (task, error) {
	t := task{Request: Request{Queue: queue, ID: id}, message: message}
	var parent, state string
	err := eachField([]byte(message), func(field protowire.Number, text []byte, n uint64) error {
		switch field {
		case fieldType:
			t.Type = string(text)
		case fieldPayload:
			t.Payload = text
		case fieldRetried:
			t.Again = n > 0
		case fieldDeadline:
			t.Late = n > 0 && now.Unix() >= int64(n)
		case fieldUnique:
			t.unique = string(text)
		case fieldRetention:
			t.retention = time.Duration(n) * time.Second
		case fieldHeaders:
			var name, value string
			err := eachField(text, func(field protowire.Number, text []byte, _ uint64) error {
				if field == 1 {
					name = string(text)
				} else {
					value = string(text)
				}
				return nil
			})
			switch strings.ToLower(name) { // carriers may write them as HTTP does: Traceparent
			case "traceparent":
				parent = value
			case "tracestate":
				state = value
			}
			return err
		}
		return nil
	})
	if err == nil && t.Type == "" {
		err = errors.New("it has no type")
	}
	if err != nil { // nothing of it counts
		return task{Request: Request{Queue: queue, ID: id}}, fmt.Errorf("read the message of task %s in queue %s: %w", id, queue, err)
	}
	t.Trace = trace.Parse(parent, state)
	if since, text, ok := strings.Cut(word, " "); ok {
		if ms, err := strconv.ParseInt(since, 10, 64); err == nil { // else a tool has written it
			t.Word, t.Since = text, time.UnixMilli(ms)
		}
	}
	return t, nil
}

// eachField calls f with each field of a protobuf message: with its bytes, or with its number.
func eachField(message []byte, f func(field protowire.Number, text []byte, n uint64) error) error {
	for len(message) > 0 {
		field, kind, used := protowire.ConsumeTag(message)
		if used < 0 {
			return protowire.ParseError(used)
		}
		message = message[used:]
		var text []byte
		var n uint64
		switch kind {
		case protowire.BytesType:
			text, used = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			n, used = protowire.ConsumeVarint(message)
		default:
			used = protowire.ConsumeFieldValue(field, kind, message)
		}
		if used < 0 {
			return protowire.ParseError(used)
		}
		if err := f(field, text, n); err != nil {
			return err
		}
		message = message[used:]
	}
	return nil
}

// completed returns the message of a task that ended at an instant. Of two values of a field, the
// last one counts.
func (t *task) completed(at time.Time) string {
	message := protowire.AppendTag([]byte(t.message), fieldCompletedAt, protowire.VarintType)
	message = protowire.AppendVarint(message, uint64(at.Unix()))
	// If a person runs it again, it has not been tried.
	message = protowire.AppendTag(message, fieldRetried, protowire.VarintType)
	return string(protowire.AppendVarint(message, 0))
}
