package guard

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"lockstep/locks"
)

// gate keeps the requests of different tokens apart while they are handled. It refuses nobody: that
// is the store's. A request waits for lower tokens only, so no two wait for each other. The zero
// value is ready to use.
type gate struct {
	mu sync.Mutex
	// inside maps each resource to the requests that have entered and not left, in any order.
	// Guarded by mu.
	inside map[string][]*pass
}

// pass is one request that has entered.
type pass struct {
	token     locks.Token
	resources []string
	left      chan struct{} // closed by leave
}

func (g *gate) enter(token locks.Token, resources []string) *pass {
	p := &pass{token, resources, make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside == nil {
		g.inside = make(map[string][]*pass)
	}
	for _, resource := range resources {
		g.inside[resource] = append(g.inside[resource], p)
	}
	return p
}

func (g *gate) leave(p *pass) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, resource := range p.resources {
		rest := slices.DeleteFunc(g.inside[resource], func(other *pass) bool { return other == p })
		if len(rest) == 0 {
			delete(g.inside, resource)
		} else {
			g.inside[resource] = rest
		}
	}
	close(p.left)
}

// wait returns when the requests with a lower token that are inside now, and have a resource of p,
// have left. The store has seen p's token by then, so those that enter later are refused by it:
// they are not waited for, or a holder that keeps trying could keep p out forever.
func (g *gate) wait(ctx context.Context, p *pass) error {
	for _, older := range g.older(p) {
		select {
		case <-older.left:
		case <-ctx.Done():
			return fmt.Errorf("wait for a request with token %s: %w", older.token, context.Cause(ctx))
		}
	}
	return nil
}

func (g *gate) older(p *pass) []*pass {
	g.mu.Lock()
	defer g.mu.Unlock()
	var older []*pass
	for _, resource := range p.resources {
		for _, other := range g.inside[resource] {
			if other.token < p.token {
				older = append(older, other)
			}
		}
	}
	return older
}
