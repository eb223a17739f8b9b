package space

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mode is how a bundle holds one of its resources.
type Mode string

const (
	ModeExclusive Mode = "exclusive" // alone
	ModeShared    Mode = "shared"    // beside others that share it
	ModePermits   Mode = "permits"   // a number of permits, of a declared limit
)

// Item is one resource of a bundle, with how it is wanted or held.
type Item struct {
	Name string
	Mode Mode
	// N is the number of permits, for ModePermits. For ModeShared it is how many may share the
	// resource, including this one; 0 means any number.
	N int
}

// String returns the item as the scripts read it: x<name>, s<name>, c<n>:<name> or p<n>:<name>.
func (i Item) String() string {
	switch {
	case i.Mode == ModePermits:
		return "p" + strconv.Itoa(i.N) + ":" + i.Name
	case i.Mode == ModeShared && i.N > 0:
		return "c" + strconv.Itoa(i.N) + ":" + i.Name
	case i.Mode == ModeShared:
		return "s" + i.Name
	}
	return "x" + i.Name
}

// ParseItem reads what [Item.String] writes.
func ParseItem(text string) (Item, error) {
	if text == "" {
		return Item{}, fmt.Errorf("%w: an empty item of a bundle", ErrInvalid)
	}
	switch kind, rest := text[0], text[1:]; kind {
	case 'x':
		return Item{Name: rest, Mode: ModeExclusive}, nil
	case 's':
		return Item{Name: rest, Mode: ModeShared}, nil
	case 'c', 'p':
		number, name, ok := strings.Cut(rest, ":")
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n < 1 {
			return Item{}, fmt.Errorf("%w: item %q of a bundle has no number", ErrInvalid, text)
		}
		mode := ModeShared
		if kind == 'p' {
			mode = ModePermits
		}
		return Item{Name: name, Mode: mode, N: n}, nil
	}
	return Item{}, fmt.Errorf("%w: item %q of a bundle has no mode", ErrInvalid, text)
}

// ParseItems reads the items of a record and skips those that it does not know.
func ParseItems(texts []string) []Item {
	items := make([]Item, 0, len(texts))
	for _, text := range texts {
		if item, err := ParseItem(text); err == nil {
			items = append(items, item)
		}
	}
	return items
}

// JoinItems returns a bundle in the form of an argument or a record.
func JoinItems(items []Item) string {
	if len(items) == 1 {
		return items[0].String()
	}
	var b strings.Builder
	for i, item := range items {
		if i > 0 {
			b.WriteByte('\x1f')
		}
		b.WriteString(item.String())
	}
	return b.String()
}

// NamesOf returns the names of a bundle, in its order.
func NamesOf(items []Item) []string {
	names := make([]string, len(items))
	for i, item := range items {
		names[i] = item.Name
	}
	return names
}

// Bundle sorts items by name and drops duplicates, in place. A resource that is wanted in two modes
// is an error.
func Bundle(items []Item) ([]Item, error) {
	slices.SortFunc(items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.N, b.N))
	})
	items = slices.Compact(items)
	for i := 1; i < len(items); i++ {
		if a, b := items[i-1], items[i]; a.Name == b.Name {
			return nil, fmt.Errorf("%w: the resource %q is asked for twice, as %s and as %s; name it once",
				ErrInvalid, a.Name, a.want(), b.want())
		}
	}
	return items, nil
}

// want describes in words how a resource is wanted.
func (i Item) want() string {
	switch {
	case i.Mode == ModePermits:
		return fmt.Sprintf("%d permits", i.N)
	case i.Mode == ModeShared && i.N > 0:
		return fmt.Sprintf("shared by at most %d", i.N)
	}
	return string(i.Mode)
}

// Covers returns what is left to ask for if the resource is already held as i; ok means nothing is
// left. A share does not cover a part of an exclusive request. Permits are added up.
func (i Item) Covers(want Item) (rest Item, ok bool) {
	switch {
	case i.Mode == ModeExclusive && want.Mode != ModePermits:
		return Item{}, true
	case i.Mode == ModeShared && want.Mode == ModeShared:
		if want.N == 0 || i.N != 0 && i.N <= want.N {
			return Item{}, true
		}
	case i.Mode == ModePermits && want.Mode == ModePermits:
		if want.N <= i.N {
			return Item{}, true
		}
		want.N -= i.N
	}
	return want, false
}
