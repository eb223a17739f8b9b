package guard

import (
	"context"
	"sync"

	"lockstep/locks"
)

// Memory is a [Store] in the memory of one process. It forgets everything when the process ends,
// and nothing before, so it grows with every new name. It suits effects inside the same process.
// The zero value is ready to use.
type Memory struct {
	mu   sync.Mutex
	seen map[string]locks.Token // guarded by mu
}

// Check implements [Store]; ctx is not used. Its only errors are a [*StaleError] and [ErrInvalid].
func (m *Memory) Check(_ context.Context, token locks.Token, resources ...string) error {
	resources, err := prepare(token, resources)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, resource := range resources {
		if seen := m.seen[resource]; seen > token {
			return &StaleError{resource, token, seen}
		}
	}
	if m.seen == nil {
		m.seen = make(map[string]locks.Token)
	}
	for _, resource := range resources {
		m.seen[resource] = token
	}
	return nil
}
