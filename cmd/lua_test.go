package cmd

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// mostLuaLines is how many lines a Lua file may have. A script is assembled from the declarations
// that it uses, so a long file gains nothing: a newcomer reads it whole to find one function.
const mostLuaLines = 150

func TestNoLuaFileIsLong(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".lua" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := bytes.Count(text, []byte("\n"))
		if lines <= mostLuaLines {
			return nil
		}
		t.Errorf("%s has %d lines, want %d at most: move some of its functions into a file of lib", path, lines, mostLuaLines)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
