package jobs_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"lockstep/jobs"
)

func TestTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		size   int
		writes []string
		want   string
	}{
		{4, nil, ""},
		{4, []string{"ab", "", "cd"}, "abcd"},
		{4, []string{"abcd", "e"}, "[1 bytes left out]\nbcde"},
		{4, []string{"ab", "cdefg"}, "[3 bytes left out]\ndefg"},
		{4, []string{"abc", "0123456789", "x"}, "[10 bytes left out]\n789x"},
		{4, []string{"aäöü"}, "[3 bytes left out]\nöü"},
		{3, []string{"aäöü"}, "[5 bytes left out]\nü"}, // the cut went through ö
		// one replacement for a run of invalid bytes
		{3, []string{"\xff\xfea"}, "?a"},
		{3, []string{"\x80\x80\x80\x80"}, "[4 bytes left out]\n"}, // only the rest of a character
	} {
		tail := jobs.NewTail(test.size)
		for _, s := range test.writes {
			if n, err := tail.Write([]byte(s)); n != len(s) || err != nil {
				t.Errorf("Write(%q) = %d, %v", s, n, err)
			}
		}
		if got := tail.String(); got != test.want {
			t.Errorf("size %d, writes %q: got %q, want %q", test.size, test.writes, got, test.want)
		}
	}
}

func TestTailAgreesWithKeepingEverything(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		size := 1 + random.IntN(40)
		tail, all := jobs.NewTail(size), ""
		for range random.IntN(12) {
			s := strings.Repeat(string(rune('a'+random.IntN(26))), random.IntN(60))
			all += s
			_, _ = tail.Write([]byte(s))
			want := all
			if omitted := len(all) - size; omitted > 0 {
				want = fmt.Sprintf("[%d bytes left out]\n%s", omitted, all[omitted:])
			}
			if got := tail.String(); got != want {
				t.Fatalf("size %d: got %q, want %q", size, got, want)
			}
		}
	}
}

func TestTailAllowsManyWritersAndNeverExceedsItsSize(t *testing.T) {
	t.Parallel()
	tail := jobs.NewTail(0)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 0))
			for range 200 {
				p := make([]byte, random.IntN(500))
				for i := range p {
					p[i] = byte(random.Uint32())
				}
				_, _ = tail.Write(p)
				_ = tail.String() // concurrently with the writers, for the race detector
			}
		})
	}
	writers.Wait()
	head, kept, ok := strings.Cut(tail.String(), "\n")
	if !ok || !strings.HasSuffix(head, " bytes left out]") || len(kept) > jobs.DefaultTail || !utf8.ValidString(kept) {
		t.Errorf("head %q, %d bytes kept, valid %v; want at most %d valid bytes", head, len(kept), utf8.ValidString(kept), jobs.DefaultTail)
	}
}
