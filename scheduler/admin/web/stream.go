package web

import (
	"encoding/json"
	"io"
	"net/http"
	"time"
)

const (
	heartbeat     = 15 * time.Second // without an event, proxies and clients see a comment
	streamWriting = 10 * time.Second // how long a client may take to read what it is sent
)

// stream is a reply of server-sent events. The deadlines of usual requests do not end it. While it
// has nothing to send, its connection makes room for others: its client opens it again.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	conn    *boundConn // nil in a server that does not count its connections
	sent    time.Time  // the last part
}

// newStream sends the header of the reply.
func newStream(w http.ResponseWriter, r *http.Request) *stream {
	s := &stream{w: w, control: http.NewResponseController(w)}
	s.conn, _ = r.Context().Value(connKey{}).(*boundConn)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would keep the events back
	w.WriteHeader(http.StatusOK)
	// A writer without deadlines needs no others.
	_ = s.control.SetReadDeadline(time.Time{})
	return s
}

// send sends some events. It returns false if the client has disconnected, or is too slow to read.
func (s *stream) send(text string) bool {
	s.sent = time.Now()
	_ = s.control.SetWriteDeadline(s.sent.Add(streamWriting))
	if _, err := io.WriteString(s.w, text); err != nil || s.control.Flush() != nil {
		return false
	}
	if s.conn != nil {
		s.conn.enter(connQuiet)
	}
	return true
}

// beat sends a comment if nothing else was sent for a while. It returns what send returns.
func (s *stream) beat() bool { return time.Since(s.sent) < heartbeat || s.send(":\n\n") }

// event returns the text of an event.
func event(name string, data any) string {
	text, err := json.Marshal(data)
	if err != nil {
		panic("web: an event is plain data: " + err.Error())
	}
	return "event: " + name + "\ndata: " + string(text) + "\n\n"
}
