package jobs

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Piece is a part of a text: plain text, or one ${...}.
type Piece struct {
	Plain    string  // plain text, with $ for $$
	Source   string  // the ${...} as written; "" for plain text
	Variable string  // its variable, or "" for a file
	Fallback *string // the default of the variable; nil if it has none
	File     string  // the absolute path of its file

	From, To int // the bytes of the text that this piece was read from
}

// PlaceholderError describes the mistake in one ${...}.
type PlaceholderError struct {
	Source string // the ${...} as written; if it has no closing }, the rest of the text
	Reason string
	Hint   string
}

func (e *PlaceholderError) Error() string { return e.Source + " " + e.Reason }

// Pieces splits a text at its ${VAR}, ${VAR:-default} and ${file:/path}, and at each $$. It returns
// nil for a text that has none of them.
func Pieces(text string) ([]Piece, *PlaceholderError) {
	if !strings.Contains(text, "${") && !strings.Contains(text, "$$") {
		return nil, nil
	}
	var list []Piece
	at := 0
	plain := func(value string, to int) {
		if value != "" {
			list = append(list, Piece{Plain: value, From: at, To: to})
		}
		at = to
	}
	for at < len(text) {
		rest := text[at:]
		i := strings.IndexByte(rest, '$')
		switch {
		case i < 0 || i == len(rest)-1:
			plain(rest, len(text))
		case rest[i+1] == '$':
			plain(rest[:i+1], at+i+2)
		case rest[i+1] != '{':
			plain(rest[:i+1], at+i+1)
		default:
			plain(rest[:i], at+i)
			rest = rest[i:]
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return nil, &PlaceholderError{rest, "has no closing }", dollarHint}
			}
			p, err := parsePlaceholder(rest[:end+1])
			if err != nil {
				return nil, err
			}
			p.From, p.To = at, at+end+1
			list, at = append(list, p), p.To
		}
	}
	return list, nil
}

const dollarHint = "write $$ for a literal dollar sign"

// parsePlaceholder parses one ${...}.
func parsePlaceholder(source string) (Piece, *PlaceholderError) {
	bad := func(reason, hint string) (Piece, *PlaceholderError) {
		return Piece{}, &PlaceholderError{source, reason, hint}
	}
	inner := source[2 : len(source)-1]
	if strings.Contains(inner, "${") {
		return bad("has another ${ inside", "a default is plain text")
	}
	if file, ok := strings.CutPrefix(inner, "file:"); ok {
		if !filepath.IsAbs(file) {
			return bad("does not name an absolute path", "write ${file:/path}")
		}
		return Piece{Source: source, File: file}, nil
	}
	name, rest := inner, ""
	if i := strings.IndexFunc(inner, notInVariable); i >= 0 {
		name, rest = inner[:i], inner[i:]
	}
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return bad("does not name a variable", dollarHint)
	}
	if rest == "" {
		return Piece{Source: source, Variable: name}, nil
	}
	fallback, ok := strings.CutPrefix(rest, ":-")
	if !ok {
		const limit = 100
		if runes := []rune(rest); len(runes) > limit {
			rest = string(runes[:limit]) + "..."
		}
		return bad(fmt.Sprintf("has %s after the name", strconv.Quote(rest)), "write ${VAR}, ${VAR:-default} or ${file:/path}")
	}
	return Piece{Source: source, Variable: name, Fallback: &fallback}, nil
}

func notInVariable(r rune) bool {
	return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// HasPlaceholders reports whether a text, or a JSON value, may contain a ${...} or a $$.
func HasPlaceholders(text []byte) bool {
	return bytes.Contains(text, []byte("${")) || bytes.Contains(text, []byte("$$")) || bytes.Contains(text, []byte(`\u0024`))
}

// blank returns a text with NULs in place of each ${...}, as many as the ${...} has bytes. A ${...}
// with a mistake ends at the next }, and becomes letters: nothing replaces it.
func blank(text string) string {
	out := []byte(text)
	if list, err := Pieces(text); err == nil {
		for _, p := range list {
			if p.Source != "" {
				clear(out[p.From:p.To])
			}
		}
		return string(out)
	}
	for at := 0; ; {
		i := strings.Index(text[at:], "${")
		if i < 0 {
			break
		}
		from := at + i
		end := strings.IndexByte(text[from:], '}')
		if end < 0 {
			break
		}
		at = from + end + 1
		one := out[from:at]
		if _, err := Pieces(string(one)); err == nil {
			clear(one)
		} else {
			copy(one, bytes.Repeat([]byte("x"), len(one)))
		}
	}
	return string(out)
}
