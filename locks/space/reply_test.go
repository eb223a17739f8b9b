package space

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestFieldsOfAReplyAreReadInTheirOrder(t *testing.T) {
	r := Read([]any{"a", int64(7), nil, "8", int64(1500), "0", []any{"x", int64(1), "y", "2"}}, nil)
	if a, seven, nothing, eight := r.Text(), r.Text(), r.Text(), r.Number(); a != "a" || seven != "7" || nothing != "" || eight != 8 {
		t.Errorf("got %q, %q, %q, %d", a, seven, nothing, eight)
	}
	if at, no := r.Time(), r.Time(); !at.Equal(time.UnixMilli(1500)) || !no.IsZero() {
		t.Errorf("got the times %v and %v", at, no)
	}
	list := make(map[string]int64)
	r.Each(func(entry *Reader) { list[entry.Text()] = entry.Number() })
	if want := map[string]int64{"x": 1, "y": 2}; !reflect.DeepEqual(list, want) || r.More() || r.Err != nil {
		t.Errorf("got %v, %v, want %v", list, r.Err, want)
	}
}

func TestAReplyThatIsTooShortOrOfAnotherKindIsAnError(t *testing.T) {
	failed := errors.New("no reply")
	for name, test := range map[string]struct {
		answer Reply
		err    error
		read   func(r *Reader)
		want   error
	}{
		"an error instead of a reply": {nil, failed, func(r *Reader) { r.Text() }, failed},
		"no field":                    {[]any{}, nil, func(r *Reader) { r.Text() }, ErrReply},
		"one field for two":           {Reply{"a"}, nil, func(r *Reader) { r.Text(); r.Number() }, ErrReply},
		"a list for a text":           {[]any{[]any{}}, nil, func(r *Reader) { r.Text() }, ErrReply},
		"a list for a number":         {[]any{[]any{}}, nil, func(r *Reader) { r.Number() }, ErrReply},
		"a text for a number":         {[]any{"1a"}, nil, func(r *Reader) { r.Number() }, ErrReply},
		"nothing for a number":        {[]any{nil}, nil, func(r *Reader) { r.Number() }, ErrReply},
		"a text for a time":           {[]any{""}, nil, func(r *Reader) { r.Time() }, ErrReply},
		"a text for a list":           {[]any{"a"}, nil, func(r *Reader) { r.Each(func(*Reader) { t.Error("it is read") }) }, ErrReply},
		"a list that ends too soon": {[]any{[]any{"a", "b", "c"}}, nil, func(r *Reader) {
			r.Each(func(list *Reader) { list.Text(); list.Text() })
		}, ErrReply},
		"an unknown outcome": {Reply{"a"}, nil, func(r *Reader) { r.Err = r.Unknown(r.Text()) }, ErrReply},
	} {
		r := Read(test.answer, test.err)
		test.read(r)
		if first := r.Err; !errors.Is(first, test.want) {
			t.Errorf("%s: got %v, want %v", name, first, test.want)
		} else if r.Text() != "" || r.Number() != 0 || !r.Time().IsZero() || r.More() || !errors.Is(r.Err, first) || !errors.Is(r.Unknown("b"), first) {
			t.Errorf("%s: more is read after the error %v: %v", name, first, r.Err)
		}
	}
}

func TestFieldsByPositionAreZeroWhereAReplyHasNone(t *testing.T) {
	for _, answer := range []any{[]any{"granted", int64(7), nil}, "granted\x1f7\x1f"} {
		r := ToReply(answer)
		if r.At(0) != "granted" || r.At(1) != "7" || r.NumberAt(1) != 7 || r.At(2) != "" || r.At(3) != "" || r.NumberAt(0) != 0 || r.NumberAt(3) != 0 {
			t.Errorf("%q is read as %q, %d, %q, %q", answer, r.At(0), r.NumberAt(1), r.At(2), r.At(3))
		}
	}
}
