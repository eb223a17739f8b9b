//go:build unix

package guard

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMessagesArriveAsTheyWereSent(t *testing.T) {
	t.Parallel()
	orders := []Order{
		{Start: &Start{
			Argv: []string{"sh", "-c", "", "not UTF-8: \xff\x00"}, Env: []string{"A=" + strings.Repeat("x", 200_000), "B"},
			Parent: 4711, Group: -1, Mark: 1<<62 | 5, Remove: "/tmp/args",
		}, KillBy: -time.Hour, Signal: syscall.SIGTERM, Stop: true},
		{Start: &Start{}},
		{KillBy: 1<<63 - 1},
		{},
	}
	reports := []Report{
		{Failed: &Failed{Reason: "no such file", Errno: syscall.ENOENT, NotFound: true}},
		{Started: 1 << 22},
		{Ended: &Ended{Code: 255, Signal: syscall.SIGKILL, Stopped: true, Overdue: true, Terminated: true}},
		{Ended: &Ended{Overdue: true}},
		{Gone: &Gone{Leftovers: 3}},
	}
	var pipe bytes.Buffer
	for _, o := range orders {
		if err := o.Send(&pipe); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range orders {
		if got, err := ReceiveOrder(&pipe); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v and %v, want %+v", got, err, want)
		}
	}
	for _, r := range reports {
		if err := r.Send(&pipe); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range reports {
		if got, err := ReceiveReport(&pipe); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v and %v, want %+v", got, err, want)
		}
	}
	if _, err := ReceiveOrder(&pipe); !errors.Is(err, io.EOF) {
		t.Errorf("after the last message: got %v, want EOF", err)
	}
}

// A field that its list of fields lacks would be lost without a trace.
func TestEveryFieldIsSent(t *testing.T) {
	t.Parallel()
	var o Order
	fill(reflect.ValueOf(&o).Elem())
	var r Report
	fill(reflect.ValueOf(&r).Elem())
	var pipe bytes.Buffer
	if err := errors.Join(o.Send(&pipe), r.Send(&pipe)); err != nil {
		t.Fatal(err)
	}
	if got, err := ReceiveOrder(&pipe); err != nil || !reflect.DeepEqual(got, o) {
		t.Errorf("got %+v and %v, want %+v", got, err, o)
	}
	if got, err := ReceiveReport(&pipe); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v and %v, want %+v", got, err, r)
	}
}

// fill gives every field below v a value other than its zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64, reflect.Uintptr:
		v.SetUint(7)
	default:
		panic("a field of a kind that no message has: " + v.Kind().String())
	}
}

// A worker may die while it sends, and a person may connect the pipes to anything.
func TestIncompleteAndForeignMessagesAreErrors(t *testing.T) {
	t.Parallel()
	var pipe bytes.Buffer
	if err := (Order{Start: &Start{Argv: []string{"sh"}, Env: []string{"A=1"}}}).Send(&pipe); err != nil {
		t.Fatal(err)
	}
	whole := pipe.Bytes()
	for n := 1; n < len(whole); n++ {
		if _, err := ReceiveOrder(bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d of %d bytes: got %v, want an unexpected end", n, len(whole), err)
		}
	}
	const one, eight, sixteen = "\x01\x00\x00\x00\x00\x00\x00\x00", "\x08\x00\x00\x00\x00\x00\x00\x00", "\x10\x00\x00\x00\x00\x00\x00\x00"
	longer := string(append([]byte{byte(len(whole) - 7)}, whole[1:]...)) + "\x00"
	for _, foreign := range []string{
		"hello, world\n", strings.Repeat("\xff", 100), strings.Repeat("\x00", 100),
		eight + "12345678", // shorter than its fields
		longer,             // than its fields
		// the count of a list exceeds the message
		sixteen + one + "\xff\xff\xff\xff\xff\xff\xff\x7f",
	} {
		if got, err := ReceiveOrder(strings.NewReader(foreign)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%q: got %+v and %v, want an error", foreign, got, err)
		}
	}
}
