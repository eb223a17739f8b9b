package redistest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// messages splits a stream that arrives in pieces of a size into its messages; an unfinished one is
// the last.
func messages(stream []byte, size int) (out []string, err error) {
	var s scanner
	message := ""
	for piece := range slices.Chunk(stream, size) {
		for len(piece) > 0 {
			n, done, err := s.scan(piece)
			if err != nil {
				return out, err
			}
			message += string(piece[:n])
			piece = piece[n:]
			if done {
				out, message = append(out, message), ""
			}
		}
	}
	if message != "" {
		out = append(out, message)
	}
	return out, nil
}

var streams = [][]string{
	{"+OK\r\n", "-ERR no\r\n", ":-12\r\n", "$3\r\na\r\n\r\n", "$0\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n"},
	{"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*1\r\n$4\r\nPING\r\n"},
	{"*3\r\n*2\r\n:1\r\n*0\r\n$-1\r\n*1\r\n*1\r\n+deep\r\n", ":1\r\n"},
	{"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n#t\r\n,1.5\r\n", "_\r\n", "~1\r\n(123\r\n", "=5\r\ntxt:a\r\n", "!3\r\nERR\r\n"},
	{">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\n\r\n\r\n", "|1\r\n+ttl\r\n:3\r\n*2\r\n:1\r\n|1\r\n+x\r\n+y\r\n:2\r\n", "+last\r\n"},
}

func TestScannerFindsTheEndsOfMessages(t *testing.T) {
	t.Parallel()
	for _, want := range streams {
		stream := []byte(strings.Join(want, ""))
		for size := 1; size <= len(stream); size++ {
			if got, err := messages(stream, size); err != nil || !slices.Equal(got, want) {
				t.Fatalf("in pieces of %d: got %q (%v), want %q", size, got, err, want)
			}
		}
	}
}

func TestScannerRefusesWhatIsNotRESP(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"PING\r\n", "\r\n", "*x\r\n", "$\r\n", "$-2\r\n", "+OK\n", strings.Repeat("+", maxLine+1)} {
		if got, err := messages([]byte(stream), 10); err == nil {
			t.Errorf("%.20q: got %q, want an error", stream, got)
		}
	}
}

func FuzzScannerDoesNotDependOnThePieces(f *testing.F) {
	for i, stream := range streams {
		f.Add([]byte(strings.Join(stream, "")), i+1)
	}
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		if size < 1 || len(stream) == 0 {
			return
		}
		want, wantErr := messages(stream, len(stream))
		got, err := messages(stream, size)
		if !slices.Equal(got, want) || (err == nil) != (wantErr == nil) {
			t.Errorf("in pieces of %d: got %q (%v), want %q (%v)", size, got, err, want, wantErr)
		}
	})
}

// command writes a request as clients do.
func command(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	return b.String()
}

// A twice is a wire under faults that double everything they may.
type twice struct {
	wire
	copies [][]byte // copies that are not due yet
}

func (w *twice) write(data string, v verdict) string {
	return string(w.sendRequests([]byte(data), true, func(string) verdict { return v }, func(one []byte) { w.copies = append(w.copies, one) }))
}

func TestRequestsAreSentAsAWhole(t *testing.T) {
	t.Parallel()
	get := command("GET", "k")
	for cut := 1; cut < len(get); cut++ {
		w := new(twice)
		if got := w.write(get[:cut], verdict{resend: true}); got != "" {
			t.Fatalf("after %d bytes %q were sent", cut, got)
		}
		if got := w.write(get[cut:]+get[:cut], verdict{resend: true}); got != get+get {
			t.Fatalf("got %q, want the request twice", got)
		}
		// When the fault is lifted, the kept bytes are sent.
		got := w.sendRequests([]byte(get[cut:]), false, nil, nil)
		if string(got) != get {
			t.Fatalf("got %q, want %q", got, get)
		}
		replies, f := w.returnReplies([]byte("$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"))
		if string(replies) != "$1\r\nb\r\n$1\r\nc\r\n" || f != passed {
			t.Fatalf("got %q (%v), want the second and the third reply", replies, f)
		}
	}
}

func TestFaultSetInTheMiddleSparesTheCurrentRequest(t *testing.T) {
	t.Parallel()
	get := command("GET", "k")
	w := new(twice)
	if got := w.sendRequests([]byte(get[:5]), false, nil, nil); string(got) != get[:5] {
		t.Fatalf("got %q, want what came in", got)
	}
	if got := w.write(get[5:]+get, verdict{resend: true}); got != get[5:]+get+get {
		t.Errorf("got %q, want the rest, and the next one twice", got)
	}
}

func TestLateCopyWaitsForTheEndOfTheCurrentRequest(t *testing.T) {
	t.Parallel()
	incr, get := command("INCR", "n"), command("GET", "k")
	for name, tt := range map[string]struct{ begin, end string }{
		"request":     {get[:7], get[7:]},
		"transaction": {command("MULTI") + get, get + command("EXEC")},
		"asking":      {command("ASKING"), get},
	} {
		t.Run(name, func(t *testing.T) {
			w := new(twice)
			if got := w.write(incr, verdict{repeat: true}); got != incr {
				t.Fatalf("got %q, want %q", got, incr)
			}
			if len(w.copies) != 1 {
				t.Fatalf("there are %d copies, want 1", len(w.copies))
			}
			sent := string(w.sendRequests([]byte(tt.begin), false, nil, nil))
			w.late = append(w.late, w.copies[0])
			sent += string(w.sendLate(nil))
			sent += string(w.sendRequests([]byte(tt.end+get), false, nil, nil))
			if want := tt.begin + tt.end + incr + get; sent != want {
				t.Errorf("got %q, want %q", sent, want)
			}
		})
	}
}

func TestOnlyRequestsThatKeepTheirMeaningAreDoubled(t *testing.T) {
	t.Parallel()
	get := command("GET", "k")
	for name, tt := range map[string]struct{ sent, want string }{
		"transaction":  {command("MULTI") + get + command("EXEC") + get, command("MULTI") + get + command("EXEC") + get + get},
		"asking":       {command("ASKING") + get + get, command("ASKING") + get + get + get},
		"subscription": {command("HELLO", "3") + command("SUBSCRIBE", "c") + get, command("HELLO", "3") + command("HELLO", "3") + command("SUBSCRIBE", "c") + get + get},
		"RESP2":        {command("SUBSCRIBE", "c") + get, command("SUBSCRIBE", "c") + get},
		"no replies":   {command("CLIENT", "REPLY", "OFF") + get, command("CLIENT", "REPLY", "OFF") + get},
		"by hand":      {"PING\r\n" + get, "PING\r\n" + get},
	} {
		if got := new(twice).write(tt.sent, verdict{resend: true}); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestFatesOfReplies(t *testing.T) {
	t.Parallel()
	get, push := command("GET", "k"), ">2\r\n+invalidate\r\n_\r\n"
	for name, tt := range map[string]struct {
		verdicts      []verdict
		replies, want string
		fate          fate
	}{
		"passed":                        {[]verdict{{}, {}}, "+a\r\n" + push + "+b\r\n", "+a\r\n" + push + "+b\r\n", passed},
		"lost":                          {[]verdict{{}, {reply: lost}, {}}, "+a\r\n+b\r\n+c\r\n", "+a\r\n", lost},
		"broken":                        {[]verdict{{}, {reply: broken}, {}}, "+a\r\n$4\r\nlong\r\n+c\r\n", "+a\r\n$4\r\nl", broken},
		"the second one of two is lost": {[]verdict{{resend: true, reply: lost}}, "+a\r\n" + push + "+b\r\n", push, lost},
		"unasked":                       {nil, "-ERR max number of clients reached\r\n", "-ERR max number of clients reached\r\n", passed},
		"no RESP":                       {nil, "hello", "hello", passed},
	} {
		for size := 1; size <= len(tt.replies); size++ {
			w := new(twice)
			for _, v := range tt.verdicts {
				w.write(get, v)
			}
			var got bytes.Buffer
			f := passed
			for piece := range slices.Chunk([]byte(tt.replies), size) {
				var data []byte
				data, f = w.returnReplies(piece)
				got.Write(data)
				if f != passed {
					break
				}
			}
			if got.String() != tt.want || f != tt.fate {
				t.Errorf("%s, in pieces of %d: got %q (%v), want %q (%v)", name, size, got.String(), f, tt.want, tt.fate)
			}
		}
	}
}
