//go:build !race || lint

package cmd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheToolCompilesForOtherSystems checks the types of all packages of the tool as a compiler
// would: people look at their fleet from any machine, on Windows without workers, on macOS with
// them. To compile them, and all packages that they need, would take minutes.
func TestTheToolCompilesForOtherSystems(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it checks all packages for two more systems")
	}
	for _, system := range []string{"windows", "darwin"} {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap", "lockstep/cmd/lockstep")
		list.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
		list.Stderr = os.Stderr
		out, err := list.Output()
		if err != nil {
			t.Fatalf("GOOS=%s %s: %v", system, strings.Join(list.Args, " "), err)
		}
		checked := checkTypes(t, system, out)
		if !checked["lockstep/cmd/lockstep"] || !checked["lockstep/scheduler/worker"] {
			t.Errorf("the packages for %s lack the tool", system)
		}
	}
}

// checkTypes checks packages as `go list -deps -json` lists them, each after those that it imports.
// It ignores the bodies of the functions of other modules.
func checkTypes(t *testing.T, system string, list []byte) (checked map[string]bool) {
	t.Helper()
	checked = make(map[string]bool)
	packages := map[string]*types.Package{"unsafe": types.Unsafe}
	for decoder := json.NewDecoder(bytes.NewReader(list)); ; {
		var p struct {
			ImportPath, Dir string
			GoFiles         []string
			ImportMap       map[string]string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return checked
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath == "unsafe" {
			continue
		}
		own := strings.HasPrefix(p.ImportPath, "lockstep/")
		files := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, file)
		}
		config := types.Config{
			Importer: importer(func(path string) (*types.Package, error) {
				if mapped := p.ImportMap[path]; mapped != "" {
					path = mapped
				}
				if packages[path] == nil {
					return nil, errors.New("it is not listed: " + path)
				}
				return packages[path], nil
			}),
			Sizes:            types.SizesFor("gc", "amd64"),
			IgnoreFuncBodies: !own,
			Error: func(err error) {
				if own {
					t.Errorf("%s: %v", system, err)
				}
			},
		}
		// An import that only a body uses counts as unused where bodies are ignored.
		packages[p.ImportPath], _ = config.Check(p.ImportPath, files, parsed, nil)
		checked[p.ImportPath] = own
	}
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
