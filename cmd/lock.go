package cmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
)

func (t *tool) lockCommand() *cobra.Command {
	return group("lock", "Inspect locks, and run commands under them", "Which worker holds which resources, since when, and what waits for what.",
		t.lockLsCommand(), t.lockShowCommand(), t.lockWaitsCommand(), t.lockHistoryCommand(), t.lockReleaseCommand(), t.lockUndeclareCommand(),
		t.lockExecCommand())
}

func (t *tool) lockLsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List which worker holds what",
		Long: `List which worker holds what: one line for each bundle, with its first lock and the number of further locks that it
holds alone. A lock that several may hold has its own line, with the first of its holders and the number of the
others; for permits, the line also has how many are taken, and how many there are. -o wide has a line for each lock.`,
		Args: noArgs,
	}
	flags := filterFlags(cmd, admin.LockFilters)
	limit, output := limitFlag(cmd), outputFlag(cmd, listFormats()...)
	cmd.RunE = t.reads(func(ctx context.Context, conn *connection, _ []string) error {
		filter, err := flags.read(ctx, cmd, conn)
		if err != nil {
			return err
		}
		all, err := conn.reader.Locks(ctx)
		if err != nil {
			return err
		}
		all = filter.Locks(all)
		if *output == tables {
			return bundleView().print(t, *output, first(bundles(all), *limit))
		}
		return lockView().print(t, *output, first(all, *limit))
	})
	return cmd
}

// bundle is one line of the list of locks: a hold with all locks that it holds alone, or a single
// lock that may have several holders, or one that has no holder.
type bundle struct {
	names   []string // the longest queue first
	state   string   // of a single lock: "2/3", "shared" or ""
	holders []admin.Holder
	waits   []admin.Wait // each once
}

// bundles groups the locks by hold, in the order of their names.
func bundles(all []admin.Lock) []*bundle {
	var list []*bundle
	byHold := make(map[locks.HoldID]*bundle)
	wanted := make(map[string]int, len(all))
	for _, lock := range all {
		wanted[lock.Name] = len(lock.Waits)
		if len(lock.Holders) != 1 || lock.Mode != locks.ModeExclusive {
			list = append(list, &bundle{[]string{lock.Name}, occupation(&lock), lock.Holders, lock.Waits})
			continue
		}
		holder := lock.Holders[0]
		b := byHold[holder.HoldID]
		if b == nil {
			b = &bundle{holders: lock.Holders}
			byHold[holder.HoldID] = b
			list = append(list, b)
		}
		b.names = append(b.names, lock.Name)
		for _, wait := range lock.Waits {
			if !slices.ContainsFunc(b.waits, func(w admin.Wait) bool { return w.ID == wait.ID }) {
				b.waits = append(b.waits, wait)
			}
		}
	}
	for _, b := range list {
		slices.SortStableFunc(b.names, func(x, y string) int { return cmp.Compare(wanted[y], wanted[x]) })
	}
	return list
}

// occupation describes how a lock is held that may have several holders: "2/3" of the permits,
// "shared".
func occupation(l *admin.Lock) string {
	switch {
	case l.Limit != nil:
		return fmt.Sprintf("%d/%d", *l.Used, *l.Limit)
	case l.Mode == locks.ModeShared && len(l.Holders) > 0:
		return string(l.Mode)
	}
	return ""
}

// bundleName names a bundle after one of its locks.
func bundleName(name string, locks int) string {
	if locks > 1 {
		return fmt.Sprintf("%s (+%d)", name, locks-1)
	}
	return name
}

func bundleView() view[*bundle] {
	columns := []column[*bundle]{{title: "lock", cell: func(b *bundle) string {
		return sum(" ", bundleName(b.names[0], len(b.names)), b.state)
	}}}
	for _, c := range holderColumns() {
		columns = append(columns, column[*bundle]{title: c.title, cell: func(b *bundle) string {
			if len(b.holders) == 0 {
				return ""
			}
			cell := c.cell(&b.holders[0])
			if n := len(b.holders); n > 1 && c.title == "held by" {
				cell += fmt.Sprintf(" + %d", n-1)
			}
			return cell
		}})
	}
	columns = append(columns, column[*bundle]{title: "waiting", cell: func(b *bundle) string { return waiting(b.waits) }})
	return view[*bundle]{none: "no locks are held", columns: columns}
}

func holderColumns() []column[*admin.Holder] {
	return []column[*admin.Holder]{
		{title: "held by", cell: func(h *admin.Holder) string { return string(h.Worker) }},
		{title: "run", cell: func(h *admin.Holder) string { return h.Purpose() }},
		{title: "token", cell: func(h *admin.Holder) string { return h.Token.String() }},
		{title: "held", cell: func(h *admin.Holder) string { return admin.Age(time.Duration(h.Held)) }},
		{title: "lease", cell: func(h *admin.Holder) string { return admin.Age(time.Duration(h.LeaseLeft)) }},
	}
}

// lockView has one line per lock.
func lockView() view[admin.Lock] {
	columns := []column[admin.Lock]{
		{title: "lock", cell: func(l admin.Lock) string { return l.Name }},
		{title: "mode", cell: func(l admin.Lock) string { return modeOf(&l) }},
	}
	more := []column[*admin.Holder]{
		{title: "host", cell: func(h *admin.Holder) string { return string(h.Host) }},
		{title: "pid", cell: func(h *admin.Holder) string {
			if h.PID == 0 {
				return ""
			}
			return strconv.Itoa(h.PID)
		}},
		{title: "bundle", cell: func(h *admin.Holder) string { return strings.Join(h.Bundle, " ") }},
	}
	for _, c := range append(holderColumns(), more...) {
		columns = append(columns, column[admin.Lock]{title: c.title, cell: func(l admin.Lock) string {
			var cells []string
			for i := range l.Holders {
				cells = append(cells, c.cell(&l.Holders[i]))
			}
			return sum(", ", cells...)
		}})
	}
	columns = append(columns, column[admin.Lock]{title: "waiting", cell: func(l admin.Lock) string { return waiting(l.Waits) }})
	return view[admin.Lock]{none: "no locks are held", name: func(l admin.Lock) string { return l.Name }, columns: columns}
}

// modeOf describes how a lock is held, or else requested: "exclusive", "shared", "permits 2/3".
func modeOf(l *admin.Lock) string {
	if l.Limit != nil {
		return sum(" ", string(l.Mode), occupation(l))
	}
	return string(l.Mode)
}

// waiting describes how many wait and which waiter is first: "1: web-3.m4t8c2wz, 2s".
func waiting(waits []admin.Wait) string {
	if len(waits) == 0 {
		return ""
	}
	return fmt.Sprintf("%d: %s, %s", len(waits), waiter(&waits[0]), admin.Age(time.Duration(waits[0].Waited)))
}

// waiter names a waiter: a run, which waits without a worker, or a session.
func waiter(w *admin.Wait) string { return cmp.Or(string(w.RunID), string(w.Worker)) }

func (t *tool) lockShowCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "show LOCK", Short: "Show the holders of a lock and what waits for it", Args: oneArg("a LOCK")}
	return show(t, cmd, func(ctx context.Context, conn *connection, name string) (*admin.Lock, error) {
		return conn.reader.Lock(ctx, name)
	}, t.showLock)
}

func (t *tool) showLock(lock *admin.Lock, now time.Time) error {
	facts := []fact{{"lock", lock.Name}}
	switch {
	case lock.Limit != nil:
		facts = append(facts, fact{"permits", fmt.Sprintf("%d of %d are taken", *lock.Used, *lock.Limit)})
	case len(lock.Holders) > 0:
		facts = append(facts, fact{"mode", string(lock.Mode)})
	}
	if len(lock.Holders) == 0 {
		facts = append(facts, fact{"held by", "none"})
	}
	for i := range lock.Holders {
		h := &lock.Holders[i]
		host := string(h.Host)
		if h.PID != 0 {
			host += ", pid " + strconv.Itoa(h.PID)
		}
		lease := admin.Age(time.Duration(h.LeaseLeft)) + " left, renewed while its worker lives"
		if h.Resting {
			lease = "the hold has ended, and its locks stay taken for another " + admin.Age(time.Duration(h.LeaseLeft))
		}
		if n := h.Permits[lock.Name]; n > 0 {
			host = sum(", ", host, many(n, "permit"))
		} else if len(lock.Holders) > 1 {
			host = sum(", ", host, string(h.Of(lock.Name)))
		}
		facts = append(facts,
			fact{"held by", withAge(string(h.Worker), host)},
			fact{"wanted back", wantedBack(h.Asked)},
			fact{"run", h.Purpose()},
			fact{"stuck", stuckSince(h.Stuck, h.Since.Add(time.Duration(h.Held)))},
			fact{"hold", string(h.HoldID)},
			fact{"token", h.Token.String()},
			fact{"since", withAge(h.Since.String(), admin.Age(time.Duration(h.Held)))},
			fact{"lease", lease},
			fact{"bundle", strings.Join(h.Bundle, " ")},
		)
	}
	if err := t.facts(facts); err != nil || len(lock.Waits) == 0 {
		return err
	}
	if err := t.write("\n"); err != nil {
		return err
	}
	return waitView(now).print(t, tables, lock.Waits)
}

// wantedBack names the actor that asks for a lock back, with the reason.
func wantedBack(asked *admin.Asked) string {
	if asked == nil {
		return ""
	}
	how := " asks for it"
	if asked.Force == "take" {
		how = " has ended its work"
	}
	return sum(": ", cmp.Or(string(asked.By), "an operator")+how, string(asked.Reason))
}

func (t *tool) lockWaitsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "waits", Short: "List what waits for locks, in order, and what blocks it",
		Long: `List what waits for locks, in order, and what blocks it. --since and --until go by the start of a wait.`,
		Args: noArgs,
	}
	flags := filterFlags(cmd, admin.WaitFilters, string(space.Waiting), string(space.Offered), string(space.Lapsed), string(space.Kept))
	return list(t, cmd, waitView, func(ctx context.Context, conn *connection, _ []string, _ int) ([]admin.Wait, error) {
		filter, err := flags.read(ctx, cmd, conn)
		if err != nil {
			return nil, err
		}
		waits, err := conn.reader.Waits(ctx)
		if err == nil {
			waits, err = filter.Waits(waits)
		}
		return waits, misused(cmd, err)
	})
}

func waitView(time.Time) view[admin.Wait] {
	return view[admin.Wait]{
		none: "nothing waits",
		name: func(w admin.Wait) string { return string(w.ID) },
		columns: []column[admin.Wait]{
			{title: "waiting", cell: func(w admin.Wait) string { return waiter(&w) }},
			{title: "for", cell: func(w admin.Wait) string { return admin.Age(time.Duration(w.Waited)) }},
			{title: "wants", cell: func(w admin.Wait) string { return strings.Join(w.Wants, " ") }},
			{title: "blocked by", cell: func(w admin.Wait) string {
				ids := make([]string, len(w.Blockers))
				for i, b := range w.Blockers {
					ids[i] = b.ID
					if b.Waits {
						ids[i] += " (waits too)"
					}
				}
				if w.State == space.Kept {
					ids = append(ids, "its queue is paused")
				}
				return strings.Join(ids, ", ")
			}},
			{title: "state", wide: true, cell: func(w admin.Wait) string { return string(w.State) }},
			{title: "what", wide: true, cell: func(w admin.Wait) string { return w.Purpose() }},
		},
	}
}
