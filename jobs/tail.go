package jobs

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// DefaultTail is how many bytes of a run's output are kept unless something else is said.
const DefaultTail = 16 << 10

// Tail is a writer that keeps the end of what is written to it: the end is where the error is. It is safe for
// concurrent use; Write never fails and never waits.
type Tail struct {
	mu    sync.Mutex
	max   int
	ring  []byte // grows up to max; from then on ring[next] is its oldest byte
	next  int
	total int64 // bytes written ever
}

// NewTail returns a Tail that keeps the last size bytes; a size of 0 or less means [DefaultTail].
func NewTail(size int) *Tail {
	if size <= 0 {
		size = DefaultTail
	}
	return &Tail{max: size}
}

// Write takes p; it always returns len(p) and no error.
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
		p = p[skip:] // would be overwritten below; next may stay, as all of the ring is replaced
	}
	for len(p) > 0 {
		k := copy(t.ring[t.next:], p)
		t.next = (t.next + k) % t.max
		p = p[k:]
	}
	return n, nil
}

// String returns what was kept as valid UTF-8: other bytes show as "?". If something was left out, a first line says
// how many bytes.
func (t *Tail) String() string {
	t.mu.Lock()
	kept := make([]byte, 0, len(t.ring))
	kept = append(kept, t.ring[t.next:]...)
	kept = append(kept, t.ring[:t.next]...)
	omitted := t.total - int64(len(kept))
	t.mu.Unlock()

	if omitted > 0 {
		for range utf8.UTFMax - 1 { // the rest of a character that the cut went through
			if len(kept) == 0 || utf8.RuneStart(kept[0]) {
				break
			}
			kept = kept[1:]
			omitted++
		}
	}
	text := strings.ToValidUTF8(string(kept), "?") // one byte for at least one: never longer than what was kept
	if omitted > 0 {
		text = fmt.Sprintf("[%d bytes left out]\n", omitted) + text
	}
	return text
}
