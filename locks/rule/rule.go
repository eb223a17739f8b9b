package rule

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"lockstep/locks"
	"lockstep/locks/space"
)

// Options describe what a piece of work locks, and how. Make a [Rule] of them with [New].
type Options struct {
	// Prefix comes before every name, including those of permits: "shop:" makes "shop:bill:1001" of
	// "bill:1001".
	Prefix string

	// Exclusive, Shared and Permits name resources by lock keys, which read the arguments of a
	// call: "bill:{ids[*]}". [ParseKey] has the rules. Permits maps each key to the number of
	// permits to ask for; their limits are declared with [locks.Client.Declare].
	Exclusive []string
	Shared    []string
	Permits   map[string]int

	// Wait bounds how long a call waits in line. OnBusy decides what happens to a call that did not
	// get its locks.
	Wait   time.Duration
	OnBusy Busy

	// As the parts of package locks with the same names; 0 for none.
	MaxHold    time.Duration
	MinHold    time.Duration
	CrashDelay time.Duration

	// Info is visible to callers that list the holds or find them in the way, see [locks.Info].
	Info json.RawMessage
}

// Busy decides what happens to a call when its locks are not free.
type Busy string

const (
	// BusyWait, the default, makes the call wait in line: without limit, or at most Wait if that is
	// set; then it fails.
	BusyWait Busy = ""
	// BusyFail makes the call fail with a [*locks.BusyError], after Wait if that is set, otherwise
	// at once.
	BusyFail Busy = "fail"
	// BusySkip makes the call return nil without doing the work, after Wait if that is set,
	// otherwise at once. It suits work that another process is then doing anyway.
	BusySkip Busy = "skip"
)

// A Rule is what calls with arguments of type A lock. It is safe for concurrent use. [Do] runs work
// under it. [Wrap] makes a function that does so on every call.
type Rule[A any] struct {
	prefix string
	keys   []ruleKey
	form   []locks.Part // of each request, except its bundle
	skip   bool
}

type ruleKey struct {
	key  *Key
	mode locks.Mode
	n    int
}

// New checks a rule, so that mistakes show at start and not at the first call. Keys read
// arguments in their JSON form, so fields are named by their json tags. A key that names a field
// which no value of type A can have is an error. Parts of A with an open form (any, maps,
// json.RawMessage, types with a MarshalJSON method) are not checked.
func New[A any](o Options) (*Rule[A], error) {
	r := &Rule[A]{prefix: o.Prefix, skip: o.OnBusy == BusySkip}
	if err := r.compile(&o); err != nil {
		return nil, fmt.Errorf("lock rule: %w", err)
	}
	return r, nil
}

func (r *Rule[A]) compile(o *Options) error {
	if r.prefix != "" {
		if err := locks.CheckName(r.prefix); err != nil {
			return fmt.Errorf("prefix: %w", err)
		}
	}
	var fixed []locks.Part // what every call locks
	add := func(text string, mode locks.Mode, n int) error {
		key, err := ParseKey(text)
		if err != nil {
			return err
		}
		if fault := space.NameFault(r.prefix + key.literal()); fault != "" && r.prefix+key.literal() != "" {
			return &KeyError{Key: text, Problem: fault}
		}
		if err := key.checkFields(reflect.TypeFor[A]()); err != nil {
			return err
		}
		k := ruleKey{key, mode, n}
		if key.fixed() {
			fixed = append(fixed, k.part(r.prefix+text))
		}
		r.keys = append(r.keys, k)
		return nil
	}
	for _, text := range o.Exclusive {
		if err := add(text, locks.ModeExclusive, 0); err != nil {
			return err
		}
	}
	for _, text := range o.Shared {
		if err := add(text, locks.ModeShared, 0); err != nil {
			return err
		}
	}
	for _, text := range slices.Sorted(maps.Keys(o.Permits)) {
		n := o.Permits[text]
		if n < 1 || n > locks.MaxPermits {
			return fmt.Errorf("%w: %d permits of %.100q; ask for 1 to %d", locks.ErrInvalid, n, text, locks.MaxPermits)
		}
		if err := add(text, locks.ModePermits, n); err != nil {
			return err
		}
	}
	if len(r.keys) == 0 {
		return fmt.Errorf("%w: it names nothing to lock; set Exclusive, Shared or Permits", locks.ErrInvalid)
	}
	r.form = []locks.Part{locks.MaxHold(o.MaxHold), locks.MinHold(o.MinHold), locks.CrashDelay(o.CrashDelay)}
	switch o.OnBusy {
	case BusyWait:
		if o.Wait != 0 {
			r.form = append(r.form, locks.Wait(o.Wait))
		}
	case BusyFail, BusySkip:
		r.form = append(r.form, locks.Wait(o.Wait))
	default:
		return fmt.Errorf("%w: OnBusy is %q; use BusyWait, BusyFail or BusySkip", locks.ErrInvalid, string(o.OnBusy))
	}
	if o.Info != nil {
		r.form = append(r.form, locks.Info(o.Info))
	}
	if len(fixed) == 0 {
		fixed = []locks.Part{locks.Exclusive("any")} // the form needs a bundle to be checked
	}
	_, err := locks.BundleOf(slices.Concat(fixed, r.form)...)
	return err
}

// part is one resource of a request.
func (k ruleKey) part(name string) locks.Part {
	switch k.mode {
	case locks.ModePermits:
		return locks.Permits(name, k.n)
	case locks.ModeShared:
		return locks.Shared(name)
	}
	return locks.Exclusive(name)
}

// Items returns the bundle that a call with these arguments asks for, sorted by name. It does not
// call Redis, so tests of a rule can use it. Every error is [locks.ErrInvalid]. It is a [*KeyError]
// if a key cannot use the arguments. It is another one for a resource that is named in two modes,
// for no resource at all, as from an empty list, or for more than [locks.MaxBundle].
func (r *Rule[A]) Items(args A) ([]locks.Item, error) {
	parts, err := r.parts(args)
	if err != nil {
		return nil, err
	}
	return locks.BundleOf(parts...)
}

// parts makes the request of one call.
func (r *Rule[A]) parts(args A) ([]locks.Part, error) {
	var value any
	if slices.ContainsFunc(r.keys, func(k ruleKey) bool { return !k.key.fixed() }) {
		text, err := json.Marshal(args)
		if err == nil {
			value, err = readArgs(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: args of a %T: %w", locks.ErrInvalid, args, err)
		}
	}
	var parts []locks.Part
	for _, k := range r.keys {
		names, err := k.key.expand(r.prefix, value)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			parts = append(parts, k.part(name))
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%w: these args name nothing to lock; an empty list has that effect", locks.ErrInvalid)
	}
	return append(parts, r.form...), nil
}

// literal returns the text of a key without its placeholders.
func (k *Key) literal() string {
	var b strings.Builder
	for _, part := range k.parts {
		b.WriteString(part.literal)
	}
	return b.String()
}

// fixed reports whether a key is the same name for all arguments.
func (k *Key) fixed() bool {
	return !slices.ContainsFunc(k.parts, func(part keyPart) bool { return part.path != nil })
}
