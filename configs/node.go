package configs

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// deref follows aliases to their targets. [loader.bounded] has made sure that this ends.
func deref(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	n = deref(n)
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

func isMerge(key *yaml.Node) bool { return key.Kind == yaml.ScalarNode && key.Tag == "!!merge" }

// describe names the kind of a node, for "takes a map, not ...".
func describe(n *yaml.Node) string {
	switch n = deref(n); n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "a boolean"
	case "!!null":
		return "nothing"
	}
	return "a text"
}

// entry is one key of a map with its value.
type entry struct{ key, value *yaml.Node }

// entries returns the entries of a map in order, followed by those that it merges with "<<". A key
// of the map itself takes precedence over a merged one, and the first of several merged maps takes
// precedence over the others. entries calls twice for a key that the map itself has twice, and
// misuse for a "<<" that merges anything but maps. Both may be nil.
func entries(m *yaml.Node, twice func(first, second *yaml.Node), misuse func(value *yaml.Node)) []entry {
	list := make([]entry, 0, len(m.Content)/2)
	// Only for large maps: for a few keys a search through the list is faster.
	var index map[string]*yaml.Node
	if len(m.Content) > 32 {
		index = make(map[string]*yaml.Node, len(m.Content)/2)
	}
	defined := func(name string) *yaml.Node {
		if index != nil {
			return index[name]
		}
		for _, e := range list {
			if e.key.Value == name && e.key.Kind == yaml.ScalarNode {
				return e.key
			}
		}
		return nil
	}
	add := func(key, value *yaml.Node) {
		list = append(list, entry{key, value})
		if index != nil && key.Kind == yaml.ScalarNode {
			index[key.Value] = key
		}
	}

	var merges []*yaml.Node
	var merge *yaml.Node
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := deref(m.Content[i]), m.Content[i+1]
		switch {
		case isMerge(key):
			if merge != nil && twice != nil {
				twice(merge, key)
			}
			merge = key
			merges = append(merges, value)
		case key.Kind != yaml.ScalarNode:
			add(key, value)
		default:
			if first := defined(key.Value); first != nil {
				if twice != nil {
					twice(first, key)
				}
				continue
			}
			add(key, value)
		}
	}

	// Merging a map a second time changes nothing. Skipping it keeps the time linear in the size of
	// the file.
	merged := map[*yaml.Node]bool{m: true}
	var take func(value *yaml.Node, list bool)
	take = func(value *yaml.Node, list bool) {
		from := deref(value)
		switch {
		case merged[from]:
		case from.Kind == yaml.MappingNode:
			merged[from] = true
			for _, e := range entries(from, nil, nil) {
				if e.key.Kind != yaml.ScalarNode || defined(e.key.Value) == nil {
					add(e.key, e.value)
				}
			}
		case from.Kind == yaml.SequenceNode && list:
			for _, element := range from.Content {
				take(element, false)
			}
		case misuse != nil:
			misuse(value)
		}
	}
	for _, value := range merges {
		take(value, true)
	}
	return list
}

// find returns the key and value at a path of keys, or nils. In a path, [2] is an element of a
// list, which has no key. find walks the maps again, because only problems, which are rare, need
// positions.
func find(m *yaml.Node, path ...string) (key, value *yaml.Node) {
	for i, name := range path {
		if m == nil {
			return nil, nil
		}
		m, key, value = deref(m), nil, nil
		if m.Kind == yaml.SequenceNode {
			if at, err := strconv.Atoi(strings.Trim(name, "[]")); err == nil && at >= 0 && at < len(m.Content) {
				value = m.Content[at]
			}
			m = value
			continue
		}
		if m.Kind != yaml.MappingNode {
			return nil, nil
		}
		for _, e := range entries(m, nil, nil) {
			if e.key.Kind == yaml.ScalarNode && e.key.Value == name {
				key, value = e.key, deref(e.value)
				break
			}
		}
		if i < len(path)-1 {
			m = value
		}
	}
	return key, value
}

// written returns the key and value at a path of keys, as find does, or nils if the value is null.
func written(m *yaml.Node, path ...string) (key, value *yaml.Node) {
	key, value = find(m, path...)
	if value == nil || isNull(value) {
		return nil, nil
	}
	return key, value
}

// Limits for the expansion of a file. With aliases, a short file can expand without end.
const (
	depthLimit  = 100
	aliasFactor = 20      // nodes with aliases expanded, for each node in the file
	aliasFree   = 100_000 // allowed for any file
)

// bounded reports whether a file is finite when its aliases are followed. If not, it adds a
// problem.
func (l *loader) bounded(s *source, root *yaml.Node) bool {
	b := bounds{measured: make(map[*yaml.Node]measure)}
	b.count(root)
	b.limit = aliasFree + aliasFactor*b.nodes
	b.measure(root, 1)
	if b.at == nil {
		return true
	}
	l.errorAt(s, b.at, b.code, b.message, b.hint)
	return false
}

type bounds struct {
	nodes    int
	aliases  bool
	limit    int
	measured map[*yaml.Node]measure

	at                  *yaml.Node // the first node over a limit
	code, message, hint string
}

// measure is the size of a node with its aliases expanded.
type measure struct {
	size, depth int
	open        bool // it is being measured
}

func (b *bounds) count(n *yaml.Node) {
	b.nodes++
	if n.Kind == yaml.AliasNode {
		b.aliases = true
	}
	for _, c := range n.Content {
		b.count(c)
	}
}

func (b *bounds) fail(n *yaml.Node, code, message, hint string) {
	if b.at == nil {
		b.at, b.code, b.message, b.hint = n, code, message, hint
	}
}

// measure walks a node and the targets of its aliases, each once. depth is the depth of the node
// itself.
func (b *bounds) measure(n *yaml.Node, depth int) measure {
	if b.at != nil {
		return measure{}
	}
	if depth > depthLimit {
		b.fail(n, CodeYAML, fmt.Sprintf("nested more than %d levels deep", depthLimit), "")
		return measure{}
	}
	if n.Kind == yaml.AliasNode {
		m, ok := b.measured[n.Alias]
		switch {
		case m.open:
			b.fail(n, CodeAliases, fmt.Sprintf("alias *%s refers to a value that contains it", n.Value), "")
		case !ok:
			m = b.measure(n.Alias, depth)
		case depth+m.depth > depthLimit:
			b.fail(n, CodeYAML, fmt.Sprintf("nested more than %d levels deep", depthLimit), "")
		}
		return m
	}
	if len(n.Content) == 0 {
		return measure{size: 1, depth: 1}
	}
	if b.aliases && n.Anchor != "" {
		b.measured[n] = measure{open: true}
	}
	total := measure{size: 1}
	for _, c := range n.Content {
		m := b.measure(c, depth+1)
		total.depth = max(total.depth, m.depth)
		if total.size += m.size; total.size > b.limit {
			b.fail(c, CodeAliases, fmt.Sprintf("aliases expand this file to more than %d values", b.limit),
				"write the values out, or use defaults:")
			return measure{}
		}
	}
	total.depth++
	if b.aliases && n.Anchor != "" {
		b.measured[n] = total
	}
	return total
}
