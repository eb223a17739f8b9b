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
	covers []cover
	under  []HoldID // all of them, the innermost first
}

// A cover is the use of a hold by one that is nested in it.
type cover struct {
	*Hold
	exclusive []string // resources of the bundle that the hold has exclusively
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
	exclusive := make(map[*Hold][]string)
	for _, want := range items {
		covered := false
		for _, h := range chain {
			rest, all := h.part(want)
			if all || rest != want {
				covering[h] = true
			}
			if covered = all; covered {
				if want.Mode == ModeExclusive {
					exclusive[h] = append(exclusive[h], want.Name)
				}
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
			n.covers = append(n.covers, cover{h, exclusive[h]})
		}
	}
	if len(n.covers) > 0 {
		for _, h := range between { // their contexts must continue, too
			n.covers = append(n.covers, cover{Hold: h})
		}
	}
	return n
}

// part returns what an item lacks beside what the hold's own request got, and whether that is
// nothing.
func (h *Hold) part(want Item) (rest Item, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, item := range h.own() {
		if item.Name == want.Name {
			return item.Covers(want)
		}
	}
	return want, false
}

// own returns what the hold's own request got, or what it re-enters or was joined. The caller holds
// mu.
func (h *Hold) own() []Item {
	if h.request != nil {
		return h.request.items
	}
	return h.items
}

// enter makes use of the covering holds. The error is [ErrLost] if one of them is no longer valid.
// If one of them is downgraded meanwhile, enter does nothing and returns a channel that is closed
// when that has ended: then the bundle must be compared again.
func (n *nest) enter() (downgraded <-chan struct{}, err error) {
	for i, c := range n.covers {
		valid, downgraded := c.enter(c.exclusive)
		if valid && downgraded == nil {
			continue
		}
		n.leaveTo(i)
		if valid {
			return downgraded, nil
		}
		return nil, fmt.Errorf("%w: the hold %s that the request is nested in has ended", ErrLost, c.id)
	}
	return nil, nil
}

// leave ends the use of the covering holds by a request that was not granted. If it was the last
// user of a hold, that is freed in the background: the caller no longer waits for Redis.
func (n *nest) leave() { n.leaveTo(len(n.covers)) }

func (n *nest) leaveTo(end int) {
	for _, c := range n.covers[:end] {
		// The holder of a lost hold learns of that by the context.
		if free := func() { _ = c.free() }; c.unused(c.exclusive) && !c.client.spawn(free) {
			free() // closing the client frees everything, and ends every attempt to send
		}
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

// has reports whether the hold has a resource, and is neither lost nor released. A hold that only
// re-enters others is lost with them.
func (h *Hold) has(name string) bool {
	h.mu.Lock()
	has := h.valid() && h.users > 0 && slices.ContainsFunc(h.items, func(item Item) bool { return item.Name == name })
	h.mu.Unlock()
	return has && h.Lost() == nil
}
