package jobs

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	// DefaultTail is how many bytes of the output of an attempt are kept, unless output.keep sets
	// another number.
	DefaultTail = 16 << 10

	// MaxTail is the limit of output.keep in bytes.
	MaxTail = 1 << 20
)

// Tail is a writer that keeps the end of what is written to it, because that is where errors are.
// It is safe for concurrent use. Write never fails and never blocks.
type Tail struct {
	mu    sync.Mutex
	max   int
	ring  []byte // grows up to max; then ring[next] is its oldest byte
	next  int
	total int64 // bytes written ever
}

// NewTail returns a Tail that keeps the last size bytes. A size of 0 or less means [DefaultTail].
func NewTail(size int) *Tail {
	if size <= 0 {
		size = DefaultTail
	}
	return &Tail{max: size}
}

// Write writes p. It always returns len(p) and no error.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	t.total += int64(n)
	if room := t.max - len(t.ring); room > 0 {
		k := min(room, len(p))
		t.ring = append(t.ring, p[:k]...)
		p = p[k:]
	}
	if skip := len(p) - t.max; skip > 0 {
		// The rest would be overwritten below. next can stay, because the whole ring is replaced.
		p = p[skip:]
	}
	for len(p) > 0 {
		k := copy(t.ring[t.next:], p)
		t.next = (t.next + k) % t.max
		p = p[k:]
	}
	return n, nil
}

// String returns the kept text as valid UTF-8, with "?" for other bytes. If bytes were left out, a
// first line gives their number.
func (t *Tail) String() string {
	t.mu.Lock()
	kept := t.bytes()
	omitted := t.total - int64(len(kept))
	t.mu.Unlock()

	if omitted > 0 {
		for range utf8.UTFMax - 1 { // the rest of a character that was cut
			if len(kept) == 0 || utf8.RuneStart(kept[0]) {
				break
			}
			kept = kept[1:]
			omitted++
		}
	}
	// "?" replaces at least one byte, so the text is never longer than kept.
	text := strings.ToValidUTF8(string(kept), "?")
	if omitted > 0 {
		text = fmt.Sprintf("[%d bytes left out]\n", omitted) + text
	}
	return text
}

// Bytes returns the kept bytes as they were written.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes()
}

// bytes returns a copy of the kept bytes. The caller holds mu.
func (t *Tail) bytes() []byte {
	return append(append(make([]byte, 0, len(t.ring)), t.ring[t.next:]...), t.ring[:t.next]...)
}
