package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release that comes after a tag is refused until cmd/release/last names the commit of that tag.
func TestReleaseNamesTheOneBefore(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	last := filepath.Join(root, "cmd", "release", "last")
	must(t, os.MkdirAll(filepath.Dir(last), 0o755))
	must(t, os.WriteFile(last, []byte("# a comment\n0123 1\n"), 0o644))
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "first")
	check := func() error {
		t.Helper()
		return (&source{root: root, revision: git("rev-parse", "HEAD")}).checkLast(t.Context())
	}
	if err := check(); err != nil {
		t.Errorf("the first commit, without a tag before it: %v", err)
	}
	git("tag", "-m", "one", "v1.0.0")
	tagged := git("rev-parse", "HEAD")
	git("commit", "-q", "--allow-empty", "-m", "second")
	if err := check(); err == nil || !strings.Contains(err.Error(), "the last release is v1.0.0") || !strings.Contains(err.Error(), tagged) {
		t.Errorf("after v1.0.0: got %v, want the tag and %s", err, tagged)
	}
	must(t, os.WriteFile(last, []byte("# a comment\n"+tagged+" 2\n"), 0o644))
	if err := check(); err != nil {
		t.Errorf("after the file was updated: %v", err)
	}
}
