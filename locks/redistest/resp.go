package redistest

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"sync"
)

// errNotRESP means that bytes do not follow the protocol.
var errNotRESP = errors.New("redistest: not RESP")

// maxLine bounds a line of RESP. Only errors and simple strings are longer than a number, and they
// are short.
const maxLine = 64 << 10

// scanner finds the ends of messages in a RESP stream, however it is split. It knows RESP2 and
// RESP3.
type scanner struct {
	line []byte // the beginning of an unfinished line
	skip int    // bytes of a string that are still to come, including its line end
	open []int  // for each enclosing array, how many elements are still to come
}

// scan reads the next bytes. The first n belong to the current message; done means that it ends
// with them.
func (s *scanner) scan(data []byte) (n int, done bool, err error) {
	for n < len(data) {
		if s.skip > 0 {
			k := min(s.skip, len(data)-n)
			n, s.skip = n+k, s.skip-k
			if s.skip == 0 && s.element() {
				return n, true, nil
			}
			continue
		}
		end := bytes.IndexByte(data[n:], '\n') + 1
		part := data[n:]
		if end > 0 {
			part = part[:end]
		}
		n += len(part)
		if len(s.line)+len(part) > maxLine {
			return n, false, errNotRESP
		}
		if end == 0 {
			s.line = append(s.line, part...)
			continue
		}
		if len(s.line) > 0 {
			s.line = append(s.line, part...)
			part = s.line
		}
		done, err := s.header(part)
		s.line = s.line[:0]
		if done || err != nil {
			return n, done, err
		}
	}
	return n, false, nil
}

// header handles a line, and reports whether the message ends with it.
func (s *scanner) header(line []byte) (done bool, err error) {
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || len(text) == 0 {
		return false, errNotRESP
	}
	switch text[0] {
	case '+', '-', ':', '_', '#', ',', '(': // the line has all of it
		return s.element(), nil
	}
	size, err := strconv.Atoi(string(text[1:]))
	if err != nil || size < -1 {
		return false, errNotRESP
	}
	switch text[0] {
	case '$', '=', '!': // a string follows
		if size < 0 {
			return s.element(), nil
		}
		s.skip = size + len("\r\n")
		return false, nil
	case '*', '~', '>': // elements follow
	case '%': // pairs follow
		size *= 2
	case '|': // pairs follow that describe the element after them
		size = size*2 + 1
	default:
		return false, errNotRESP
	}
	if size <= 0 {
		return s.element(), nil
	}
	s.open = append(s.open, size)
	return false, nil
}

// element counts an element that has ended, and reports whether the message has ended.
func (s *scanner) element() bool {
	for i := len(s.open) - 1; i >= 0; i-- {
		if s.open[i]--; s.open[i] > 0 {
			return false
		}
		s.open = s.open[:i]
	}
	return true
}

// headSize is how much of a request is kept to identify it.
const headSize = 128

// word returns a word of a request, if its first bytes contain it; the command is word 0.
func word(head []byte, i int) []byte {
	for line := 0; ; line++ { // *2 $7 COMMAND $8 ARGUMENT
		text, rest, ended := bytes.Cut(head, []byte("\r\n"))
		switch {
		case !ended:
			return nil
		case line == 2*(i+1):
			return text
		}
		head = rest
	}
}

// fate is what happens to a reply.
type fate uint8

const (
	passed    fate = iota // on to the client
	swallowed             // the client gets the reply to another copy of the request
	lost                  // and nothing follows
	broken                // half of it passes, then the connection ends
	unread                // from here on replies cannot be told apart
)

// wire matches the replies of a connection to its requests.
type wire struct {
	// The goroutine that carries requests owns these fields.
	requests scanner
	blind    bool   // requests cannot be told apart anymore
	head     []byte // the first bytes of the current request
	kept     []byte // the current request, as far as it was kept back to be sent as a whole
	partial  bool   // part of the current request was passed on
	// resp3 means that the client asked for RESP3: messages of subscriptions differ from replies.
	resp3 bool
	bound int      // whether requests belong together, as in a transaction: see advance
	late  [][]byte // due copies that wait until no request is incomplete
	sent  []byte   // the last result; the next call reuses its memory

	// The goroutine that carries replies owns these fields.
	replies scanner
	within  bool   // a reply is incomplete
	fate    fate   // of the current reply
	half    []byte // the current reply, if it is to break
	deaf    bool   // replies cannot be told apart anymore
	given   []byte // the last result; the next call reuses its memory

	mu       sync.Mutex
	expected []fate // of the replies to what was sent, in order; guarded by mu
	begun    int    // how many of these have begun to arrive; guarded by mu
}

func (w *wire) expect(f fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expected = append(w.expected, f)
}

// next returns the fate of the reply that begins.
func (w *wire) next() fate {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun == len(w.expected) {
		return passed // not a reply: the server says why it closes the connection
	}
	f := w.expected[w.begun]
	// The copy keeps the array from growing forever.
	if w.begun++; w.begun == len(w.expected) || w.begun == 1024 {
		w.expected, w.begun = append(w.expected[:0], w.expected[w.begun:]...), 0
	}
	return f
}

// How requests belong together.
const (
	free        = iota
	afterAsking // ASKING applies only to the next command
	transaction // MULTI until EXEC or DISCARD
)

// request describes how a request affects those around it.
type request struct {
	single  bool // a second copy would mean something else
	replies bool // it has exactly one reply
	blind   bool // from here on requests cannot be told apart
}

// advance handles a complete request.
func (w *wire) advance() request {
	r := request{single: w.bound != free, replies: true}
	if w.bound == afterAsking {
		w.bound = free
	}
	var upper [16]byte // longer than all commands that matter here
	command := word(w.head, 0)
	n := copy(upper[:], command)
	for i, c := range upper[:n] {
		if 'a' <= c && c <= 'z' {
			upper[i] = c - 'a' + 'A'
		}
	}
	switch string(upper[:n]) {
	case "MULTI":
		r.single, w.bound = true, transaction
	case "EXEC", "DISCARD", "RESET":
		w.bound = free
	case "ASKING":
		r.single = true
		if w.bound == free {
			w.bound = afterAsking
		}
	case "HELLO":
		w.resp3 = string(word(w.head, 1)) == "3"
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		// Each channel is confirmed by its own message. In RESP2 that looks like a reply.
		r.single, r.replies, r.blind = true, false, !w.resp3
	case "MONITOR", "SYNC", "PSYNC", "": // the last is an empty request, which has no reply
		r.blind = true
	case "CLIENT":
		r.blind = strings.EqualFold(string(word(w.head, 1)), "REPLY")
	}
	return r
}

// A verdict decides what happens to a request and its reply.
type verdict struct {
	resend, repeat bool
	reply          fate
}

// sendRequests takes bytes of a client and returns those to send to the server now. whole means
// that requests are kept back until they are complete, so that they can be judged by their
// commands. repeat receives copies to be sent later. The result is valid until the next call.
func (w *wire) sendRequests(data []byte, whole bool, judge func(command string) verdict, repeat func([]byte)) []byte {
	out := w.sent[:0]
	for len(data) > 0 && !w.blind {
		n, done, err := w.requests.scan(data)
		// The second case is a command as a person types it.
		if err != nil || (len(w.head) == 0 && data[0] != '*') {
			w.lose()
			break
		}
		part := data[:n]
		data = data[n:]
		w.head = append(w.head, part[:min(n, headSize-len(w.head))]...)
		if whole && !w.partial {
			w.kept = append(w.kept, part...)
		} else {
			out = append(append(out, w.kept...), part...)
			w.kept, w.partial = w.kept[:0], true
		}
		if !done {
			break
		}
		r := w.advance()
		switch {
		case r.blind:
			out = append(out, w.kept...)
			w.kept = w.kept[:0]
			w.lose()
		case w.partial:
			if r.replies {
				w.expect(passed)
			}
		default:
			out = w.send(out, r, judge(string(word(w.head, 0))), repeat)
			w.kept = w.kept[:0]
		}
		w.head, w.partial = w.head[:0], false
		out = w.sendLate(out)
	}
	if w.blind {
		out = append(append(out, w.kept...), data...)
		w.kept = nil
	}
	w.sent = out
	return out
}

// send sends the request that was kept back as often as a verdict says.
func (w *wire) send(out []byte, r request, v verdict, repeat func([]byte)) []byte {
	if v.resend && !r.single {
		out = append(out, w.kept...)
		w.expect(swallowed)
	}
	out = append(out, w.kept...)
	if r.replies {
		w.expect(v.reply)
	}
	if v.repeat && !r.single {
		repeat(bytes.Clone(w.kept))
	}
	return out
}

// lose stops telling messages apart.
func (w *wire) lose() {
	w.blind, w.late = true, nil
	w.expect(unread)
}

// sendLate sends the due copies, unless a request is incomplete.
func (w *wire) sendLate(out []byte) []byte {
	if w.blind || w.bound != free || w.partial || len(w.head) > 0 {
		return out
	}
	for _, one := range w.late {
		out = append(out, one...)
		w.expect(swallowed)
	}
	w.late = nil
	return out
}

// returnReplies takes bytes of the server and returns those that go to the client now, and what
// then happens to the connection: passed, lost or broken. The result is valid until the next call.
func (w *wire) returnReplies(data []byte) ([]byte, fate) {
	w.given = w.given[:0]
	for len(data) > 0 {
		if !w.within && !w.deaf {
			w.within, w.fate = true, passed
			if data[0] != '>' { // that is a message, not a reply
				w.fate = w.next()
			}
			w.deaf = w.fate == unread
		}
		if w.deaf {
			w.given = append(w.given, data...)
			break
		}
		n, done, err := w.replies.scan(data)
		if err != nil {
			w.deaf = true
			continue
		}
		switch w.fate {
		case passed:
			w.given = append(w.given, data[:n]...)
		case lost:
			return w.given, lost
		case broken:
			if w.half = append(w.half, data[:n]...); done {
				w.given = append(w.given, w.half[:len(w.half)/2]...)
				return w.given, broken
			}
		}
		data = data[n:]
		w.within = !done
	}
	return w.given, passed
}
