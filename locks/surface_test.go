package locks

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// surface is what users of this package find in its documentation, in the groups and the order of
// "Which call to use" in doc.go.
var surface = []string{
	`Open Options Client Client.Close Client.Session Client.Lease Client.Cutoff Client.Failed Client.Err
	CheckServer Finding Level Fatal Warning Fine ErrServer ErrFormat ErrClosed`,
	`Client.Acquire Part Wait OnWait Info ErrInvalid ErrNoSession ErrGrace`,
	`Client.TryAcquire BusyError ErrBusy`,
	`Exclusive Shared AtMost Permits BundleOf CheckName MaxBundle MaxPermits Item Mode ModeExclusive ModeShared
	ModePermits Client.Declare Client.Undeclare PermitLimit`,
	`Hold Hold.Context Hold.Lost Hold.KillBy Hold.Names Hold.Items Hold.Since FromContext ErrLost`,
	`Hold.Token Hold.ID Hold.Session Token HoldID SessionID ParseToken`,
	`Hold.Release`,
	`Client.Join Client.IsHeld Hold.Downgrade DeadlockError DeadlockEdge ErrDeadlock`,
	`MaxHold MinHold CrashDelay ErrExpired`,
	`NewSpace Space Client.Space Listing HoldRecord WaitRecord SessionRecord LockRecord Space.Revoke Revocation Force
	Ask Take Seize RevokedError ErrRevoked ErrStale Hold.Asked Hold.Why Space.EndSession
	Space.Undeclare`,
	`Client.Extension Extension ExtensionOptions Request Grant`,
}

// TestEveryExportedNameHasItsUsers proves that every function, type, constant, variable and method
// of this package is in the surface, or is used by a program in this repository. It looks neither
// at fields nor at what Space has from package space.
func TestEveryExportedNameHasItsUsers(t *testing.T) {
	t.Parallel()
	text, names := exported(t)
	group := make(map[string]int)
	for i, list := range surface {
		for _, name := range strings.Fields(list) {
			if group[name] = i; !slices.Contains(names, name) {
				t.Errorf("%s is listed and not exported", name)
			}
		}
	}
	_, calls, _ := strings.Cut(text, "Which call to use:")
	calls, _, _ = strings.Cut(calls, "\nREADME.md")
	next := 0 // the group of the next item
	seen := make(map[string]bool)
	for _, item := range strings.Split(calls, "\n  - ")[1:] {
		fresh := false
		for _, link := range regexp.MustCompile(`\[([\w.]+)\]`).FindAllStringSubmatch(item, -1) {
			name := link[1]
			if _, listed := group[name]; !listed && name[0] != strings.ToLower(name)[0] {
				t.Errorf("doc.go links %s, which is not in the list", name)
			}
			if !slices.Contains(names, name) || seen[name] {
				continue
			}
			if fresh, seen[name] = true, true; group[name] != next {
				t.Errorf("doc.go has %s in item %d, and the list in item %d", name, next, group[name])
			}
		}
		if fresh {
			next++
		}
	}
	if next != len(surface) {
		t.Errorf("doc.go has %d items with names, and the list %d", next, len(surface))
	}
	used := usedElsewhere(t)
	planted := []string{"Planted", "Request.Contains"}
	got := slices.DeleteFunc(append(names, planted...), func(name string) bool {
		_, listed := group[name]
		_, method, _ := strings.Cut(name, ".")
		return listed || used["locks."+name] || method != "" && used[name] || method == "Error" || method == "Is"
	})
	if !slices.Equal(got, planted) {
		t.Errorf("neither listed nor used outside of this package: %q, want only %q", got, planted)
	}
}

// exported returns the documentation of this package and the names in it. Those of methods are
// Type.Method.
func exported(t *testing.T) (text string, names []string) {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(set, files, "lockstep/locks")
	if err != nil {
		t.Fatal(err)
	}
	add := func(values []*doc.Value, funcs []*doc.Func, of string) {
		for _, v := range values {
			names = append(names, v.Names...)
		}
		for _, f := range funcs {
			names = append(names, of+f.Name)
		}
	}
	add(slices.Concat(p.Consts, p.Vars), p.Funcs, "")
	for _, of := range p.Types {
		names = append(names, of.Name)
		add(slices.Concat(of.Consts, of.Vars), of.Funcs, "")
		add(nil, of.Methods, of.Name+".")
	}
	return p.Doc, names
}

// usedElsewhere returns what programs of this repository select, with what they select it from:
// locks.Name, and Request.Done for request.Done, x.Request.Done and x.Request().Done.
func usedElsewhere(t *testing.T) map[string]bool {
	t.Helper()
	used := make(map[string]bool)
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(`"lockstep/locks"`)) {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of := s.X
			if call, ok := of.(*ast.CallExpr); ok {
				of = call.Fun
			}
			switch x := of.(type) {
			case *ast.Ident:
				used[x.Name+"."+s.Sel.Name] = true
				used[strings.ToUpper(x.Name[:1])+x.Name[1:]+"."+s.Sel.Name] = true
			case *ast.SelectorExpr:
				used[x.Sel.Name+"."+s.Sel.Name] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}
