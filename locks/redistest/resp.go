package redistest

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"sync"
)

// errNotRESP says that bytes are none of the protocol's.
var errNotRESP = errors.New("redistest: not RESP")

// maxLine bounds a line of RESP. Only errors and simple strings are longer than a number, and they are short.
const maxLine = 64 << 10

// scanner finds where the messages of a RESP stream end, whatever the pieces it comes in. It knows RESP2 and RESP3.
type scanner struct {
	line []byte // of a line that has not ended yet
	skip int    // bytes of a string that are still to come, with the line end behind it
	open []int  // for each array around, how many elements are still to come
}

// scan looks at the next bytes: the first n belong to the message under way, and done says that it ends with them.
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

// header takes in a line, and says whether the message ends with it.
func (s *scanner) header(line []byte) (done bool, err error) {
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || len(text) == 0 {
		return false, errNotRESP
	}
	switch text[0] {
	case '+', '-', ':', '_', '#', ',', '(': // all of it is in the line
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
	case '|': // pairs follow that tell something of the element behind them
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

// element counts one that has ended, and says whether the message has.
func (s *scanner) element() bool {
	for i := len(s.open) - 1; i >= 0; i-- {
		if s.open[i]--; s.open[i] > 0 {
			return false
		}
		s.open = s.open[:i]
	}
	return true
}

// headSize is how much of a request is kept to know what it is.
const headSize = 128

// word returns a word of a request, of what its first bytes have; the command is word 0.
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

// fate is what becomes of a reply.
type fate uint8

const (
	passed    fate = iota // on to the client
	swallowed             // the client gets the reply to another copy of the request
	lost                  // and nothing comes after it
	broken                // half of it passes, then the connection ends
	unread                // the bytes from here on have no replies that could be told apart
)

// wire knows which reply of a connection belongs to which request.
type wire struct {
	// These belong to the goroutine that carries requests.
	requests scanner
	blind    bool     // requests cannot be told apart any more
	head     []byte   // the first bytes of the request under way
	kept     []byte   // the request under way, as far as it was kept back to be sent as a whole
	partial  bool     // some of the request under way was passed on
	resp3    bool     // the client has asked for it: messages of subscriptions look unlike replies
	bound    int      // requests under way belong together, as in a transaction: see advance
	late     [][]byte // copies that are due, and wait until nothing is under way
	sent     []byte   // what the last call returned, whose memory the next one takes

	// These belong to the goroutine that carries replies.
	replies scanner
	within  bool   // a reply is under way
	fate    fate   // of the reply under way
	half    []byte // the reply under way, if it is to be broken
	deaf    bool   // replies cannot be told apart any more
	given   []byte // what the last call returned, whose memory the next one takes

	mu       sync.Mutex
	expected []fate // of the replies to what was sent, in order; guarded by mu
	begun    int    // how many of these have come, or begun to; guarded by mu
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
		return passed // nobody asked: the server says why it closes the connection
	}
	f := w.expected[w.begun]
	if w.begun++; w.begun == len(w.expected) || w.begun == 1024 { // so that the array does not grow for ever
		w.expected, w.begun = append(w.expected[:0], w.expected[w.begun:]...), 0
	}
	return f
}

// What may be bound together.
const (
	free        = iota
	afterAsking // ASKING counts for the next command alone
	transaction // MULTI until EXEC or DISCARD
)

// request is what a request means for those around it.
type request struct {
	single  bool // a second copy would mean something else
	replies bool // there is one reply
	blind   bool // from here on nobody knows
}

// advance takes a request in that is complete.
func (w *wire) advance() request {
	r := request{single: w.bound != free, replies: true}
	if w.bound == afterAsking {
		w.bound = free
	}
	var upper [16]byte // longer than all that are told apart here
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
		// Each channel is confirmed by a message of its own. In RESP2 that looks like a reply.
		r.single, r.replies, r.blind = true, false, !w.resp3
	case "MONITOR", "SYNC", "PSYNC", "": // the last is an empty request, which has no reply
		r.blind = true
	case "CLIENT":
		r.blind = strings.EqualFold(string(word(w.head, 1)), "REPLY")
	}
	return r
}

// A verdict says what becomes of a request and its reply.
type verdict struct {
	resend, repeat bool
	reply          fate
}

// sendRequests takes bytes of a client in and returns those to be sent to the server now. whole says that requests are
// to be kept back until they are complete, as it takes to judge them by their commands; repeat is given copies that are
// to come later. What is returned is good until the next call.
func (w *wire) sendRequests(data []byte, whole bool, judge func(command string) verdict, repeat func([]byte)) []byte {
	out := w.sent[:0]
	for len(data) > 0 && !w.blind {
		n, done, err := w.requests.scan(data)
		if err != nil || (len(w.head) == 0 && data[0] != '*') { // the latter is a command as a person types it
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

// lose gives up telling messages apart.
func (w *wire) lose() {
	w.blind, w.late = true, nil
	w.expect(unread)
}

// sendLate sends the copies that are due, if nothing is under way.
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

// returnReplies takes bytes of the server in and returns those that go on to the client now, and what is to become of
// the connection then: passed, lost or broken. What is returned is good until the next call.
func (w *wire) returnReplies(data []byte) ([]byte, fate) {
	w.given = w.given[:0]
	for len(data) > 0 {
		if !w.within && !w.deaf {
			w.within, w.fate = true, passed
			if data[0] != '>' { // that one is a message nobody asked for
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
