//go:build unix

package guard

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestLookUpFindsWhatExecFinds(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	for _, sub := range []string{"a", "b/both", "c"} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{
		"here": 0o700, "a/plain": 0o600, "a/both": 0o600, "c/both": 0o700, "c/only": 0o755, "c/group": 0o070,
	} {
		if err := os.WriteFile(name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c := filepath.Join(folder, "a"), filepath.Join(folder, "b"), filepath.Join(folder, "c")
	paths := []string{"", ":", a, c, a + ":" + b + ":" + c, a + ":", ":" + c, "c", c + "/:" + a, a + "/../c", "./c:" + c, "/none:" + c, c + "::" + a}
	names := []string{"", ".", "..", "here", "./here", "plain", "both", "only", "group", "none", "a/plain", "c/only", c + "/only", c, "./none", "c/", "/"}
	for _, path := range paths {
		for _, name := range names {
			t.Setenv("PATH", path)
			want, wantErr := exec.LookPath(name)
			t.Setenv("PATH", "/nowhere")
			got, err := lookUp(name, []string{"PATHS=/x", "PATH=" + path, "A=b"})
			if (err == nil) != (wantErr == nil) || err == nil && got != want {
				t.Errorf("%q in %q: got %q and %v, want %q and %v", name, path, got, err, want, wantErr)
			}
			// exec adds the name, which a StartError has already
			if text := ""; err != nil {
				if reason := new(exec.Error); errors.As(wantErr, &reason) {
					text = reason.Err.Error()
				}
				if err.Error() != text || errors.Is(err, errNotFound) != errors.Is(wantErr, exec.ErrNotFound) {
					t.Errorf("%q in %q: got %v, want %v", name, path, err, wantErr)
				}
			}
		}
	}
	t.Setenv("PATH", c)
	if got, err := lookUp("only", nil); err != nil || got != c+"/only" {
		t.Errorf("a command without PATH: got %q and %v, want it found in the guard's", got, err)
	}
	if got, err := lookUp("only", []string{"PATH="}); !errors.Is(err, errNotFound) || strings.Contains(got, "only") {
		t.Errorf("an empty PATH: got %q and %v, want it not found", got, err)
	}
}
