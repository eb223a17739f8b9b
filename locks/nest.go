package locks

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// nest is the relation of a request to the holds of its context.
type nest struct {
	rest []Item // what none of them has
	// covers are the holds that have a part of the bundle, the innermost first; then the holds that
	// re-enter them.
	covers []*Hold
	under  []HoldID // all of them, the innermost first
}

// nesting compares a bundle with the holds of ctx. It ignores holds of other clients, and holds
// outside that chain, such as a sibling's.
func (c *Client) nesting(ctx context.Context, items []Item) *nest {
	innermost, _ := ctx.Value(holdKey{}).(*Hold)
	if innermost == nil {
		return &nest{rest: items}
	}
	n := new(nest)
	var chain, between []*Hold
	for h := innermost; h != nil; h = h.outer {
		switch {
		case h.client != c:
		case h.request == nil && h.joined == nil:
			between = append(between, h)
		default:
			chain = append(chain, h)
			n.under = append(n.under, h.id)
		}
	}
	covering := make(map[*Hold]bool)
	for _, want := range items {
		covered := false
		for _, h := range chain {
			rest, all := h.part(want)
			if all || rest != want {
				covering[h] = true
			}
			if covered = all; covered {
				break
			}
			want = rest
		}
		if !covered {
			n.rest = append(n.rest, want)
		}
	}
	for _, h := range chain {
		if covering[h] {
			n.covers = append(n.covers, h)
		}
	}
	if len(n.covers) > 0 {
		n.covers = append(n.covers, between...) // their contexts must continue, too
	}
	return n
}

// part returns what an item lacks beside what the hold's own request got, and whether that is
// nothing.
func (h *Hold) part(want Item) (rest Item, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := h.items
	if h.request != nil {
		own = h.request.items
	}
	for _, item := range own {
		if item.Name == want.Name {
			return item.Covers(want)
		}
	}
	return want, false
}

// enter makes use of the covering holds. The error is [ErrLost] if one of them is no longer valid.
func (n *nest) enter() error {
	for i, h := range n.covers {
		if !h.enter() {
			n.leaveTo(i)
			return fmt.Errorf("%w: the hold %s that the request is nested in has ended", ErrLost, h.id)
		}
	}
	return nil
}

// leave ends the use of the covering holds by a request that was not granted.
func (n *nest) leave() { n.leaveTo(len(n.covers)) }

func (n *nest) leaveTo(end int) {
	for _, h := range n.covers[:end] {
		_ = h.leave() // the last user of a hold learns of its loss by the context
	}
}

// text returns what a request is nested in, as the scripts read it.
func (n *nest) text() string {
	ids := make([]string, len(n.under))
	for i, id := range n.under {
		ids[i] = string(id)
	}
	return strings.Join(ids, " ")
}

// reenter creates the hold of a bundle that other holds cover. It does not call Redis.
func (c *Client) reenter(ctx context.Context, o *spec, n *nest) *Hold {
	innermost := n.covers[0]
	h := newHold(c, ctx, innermost.mu, o.items)
	h.id, h.session, h.since, h.covers = innermost.id, innermost.session, innermost.since, n.covers
	for _, outer := range n.covers {
		h.token = max(h.token, outer.token)
	}
	return h
}

// IsHeld reports whether the holds of ctx have all the named resources, in any mode, so that code
// under ctx works under their locks. It does not call Redis. [space.Space.HeldBy] returns the other
// holders.
func (c *Client) IsHeld(ctx context.Context, names ...string) bool {
	innermost, _ := ctx.Value(holdKey{}).(*Hold)
	for _, name := range names {
		found := false
		for h := innermost; h != nil && !found; h = h.outer {
			found = h.client == c && h.has(name)
		}
		if !found {
			return false
		}
	}
	return len(names) > 0
}

func (h *Hold) has(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.valid() && slices.ContainsFunc(h.items, func(item Item) bool { return item.Name == name })
}
