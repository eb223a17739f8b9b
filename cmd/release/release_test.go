package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// platform is the one that the tests build: `make release` builds all.
const platform = "linux/amd64"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The second build starts from a copy of the checkout in another folder, an hour later by the times
// of its files, and under another umask.
func TestTwoBuildsOfACommitAreEqual(t *testing.T) {
	first, second, copied := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "elsewhere")
	must(t, run(t.Context(), "../..", first, []string{platform}, true))
	clone(t, copied)
	later := time.Now().Add(time.Hour)
	must(t, filepath.WalkDir(copied, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Type()&os.ModeSymlink != 0 {
			return err
		}
		return os.Chtimes(path, later, later)
	}))
	must(t, run(t.Context(), copied, second, []string{platform}, true))
	files := read(t, first)
	others := read(t, second)
	if len(files) != 5 || len(others) != 5 {
		t.Fatalf("got %d and %d files, want an archive, two packages, an SBOM and checksums", len(files), len(others))
	}
	for name, text := range files {
		if !bytes.Equal(text, others[name]) {
			t.Errorf("%s differs: %d and %d bytes", name, len(text), len(others[name]))
		}
	}

	folder := t.TempDir()
	archive := unpack(t, files, folder)
	for _, want := range []string{"lockstep", "man/lockstep.1", "man/lockstep-lock-exec.1", "completions/_lockstep", "completions/lockstep.bash",
		"completions/lockstep.fish", "systemd/lockstep.service", "README.md", "doc/lockstep.example.yaml"} {
		if !slices.ContainsFunc(archive, func(path string) bool { return strings.HasSuffix(path, "/"+want) }) {
			t.Errorf("the archive has no %s", want)
		}
	}
	s, err := readSource(t.Context(), "../..", true)
	must(t, err)
	checkVersion(t, s, filepath.Join(folder, filepath.Dir(archive[slices.IndexFunc(archive, func(path string) bool { return strings.HasSuffix(path, "/lockstep") })]), "lockstep"))
	checkPackage(t, s, first)
	checkBill(t, files)

	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = first
	if out, err := sums.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != 4 {
		t.Errorf("sha256sum --check: %v\n%s", err, out)
	}
}

func TestReleaseReplacesNothingButAnEarlierRelease(t *testing.T) {
	home := t.TempDir()
	kept := filepath.Join(home, "thesis.tex")
	must(t, os.WriteFile(kept, []byte("the only copy"), 0o600))
	must(t, os.WriteFile(filepath.Join(home, "lockstep_v1_linux_amd64.deb"), nil, 0o600))
	err := run(t.Context(), "../..", home, []string{platform}, true)
	if err == nil || !strings.Contains(err.Error(), "thesis.tex") || !strings.Contains(err.Error(), "-o") {
		t.Errorf("a folder with other files: got %v, want an error that names one of them and the flag", err)
	}
	if files := read(t, home); len(files) != 2 {
		t.Errorf("the refused folder has %d files, want the 2 that it had", len(files))
	}
	must(t, os.Remove(kept))
	must(t, empty(home))
	if files := read(t, home); len(files) != 0 {
		t.Errorf("%d files of an earlier release are left", len(files))
	}
}

// clone copies the checkout, with its changes.
func clone(t *testing.T, to string) {
	t.Helper()
	files, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	must(t, err)
	for path := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join("../..", path))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not committed yet
		}
		must(t, err)
		text, err := os.ReadFile(filepath.Join("../..", path))
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(to, path)), 0o700))
		must(t, os.WriteFile(filepath.Join(to, path), text, info.Mode().Perm()&0o700))
	}
	folder, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "rev-parse", "--absolute-git-dir").Output()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(to, ".git"), []byte("gitdir: "+string(folder)), 0o600))
}

// read returns the files of a folder.
func read(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(folder)
	must(t, err)
	files := make(map[string][]byte)
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		must(t, err)
		files[entry.Name()] = text
	}
	return files
}

// unpack unpacks the archive and returns its paths.
func unpack(t *testing.T, files map[string][]byte, folder string) (paths []string) {
	t.Helper()
	for name, text := range files {
		if !strings.HasSuffix(name, ".tar.gz") {
			continue
		}
		compressed, err := gzip.NewReader(bytes.NewReader(text))
		must(t, err)
		archive := tar.NewReader(compressed)
		for {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return paths
			}
			must(t, err)
			paths = append(paths, header.Name)
			text, err := io.ReadAll(archive)
			must(t, err)
			path := filepath.Join(folder, header.Name)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, text, os.FileMode(header.Mode)))
		}
	}
	t.Fatal("there is no archive")
	return nil
}

// checkVersion checks the stamps of a program.
func checkVersion(t *testing.T, s *source, program string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "version", "-o", "json").Output()
	must(t, err)
	var got struct{ Version, Revision, Time string }
	must(t, json.Unmarshal(out, &got))
	if got.Version != s.version || got.Revision != s.revision || got.Time != s.date.Format(time.RFC3339) {
		t.Errorf("version: %+v, want %s, %s, %s", got, s.version, s.revision, s.date)
	}
}

// checkPackage reads the package for Debian, where that can be read.
func checkPackage(t *testing.T, s *source, folder string) {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Log("dpkg-deb is missing: the package is not read")
		return
	}
	packages, err := filepath.Glob(filepath.Join(folder, "*.deb"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages for Debian: %q, %v", packages, err)
	}
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--extract", packages[0], root).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, out)
	}
	for _, path := range []string{"etc/lockstep", "usr/lib/systemd/system/lockstep.service", "usr/lib/sysusers.d/lockstep.conf", "usr/share/man/man1/lockstep.1.gz",
		"usr/share/bash-completion/completions/lockstep"} {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("the package: %v", err)
		}
	}
	checkVersion(t, s, filepath.Join(root, "usr/bin/lockstep"))
	out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--field", packages[0], "Package", "Version", "Architecture").Output()
	must(t, err)
	if want := "Package: lockstep\nVersion: 0~" + s.version; !strings.HasPrefix(string(out), want) && !strings.HasPrefix(s.version, "v") {
		t.Errorf("the package has %s, want %s", out, want)
	}

	scripts, tools := t.TempDir(), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--control", packages[0], filepath.Join(scripts, "of")).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, out)
	}
	must(t, os.WriteFile(filepath.Join(tools, "systemctl"), []byte("#!/bin/sh\necho $*\n"), 0o755))
	for why, want := range map[string]string{"remove": "stop lockstep\n", "0": "stop lockstep\n", "upgrade": "", "1": ""} {
		before := exec.CommandContext(t.Context(), "/bin/sh", filepath.Join(scripts, "of", "prerm"), why)
		before.Env = []string{"PATH=" + tools}
		if out, err := before.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("before the package is removed (%s): %q, %v; want %q", why, out, err, want)
		}
	}
}

// checkBill reads the SBOM.
func checkBill(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, text := range files {
		if !strings.HasSuffix(name, ".cdx.json") {
			continue
		}
		var bom struct {
			BOMFormat  string `json:"bomFormat"`
			Components []struct{ Name, Version, Purl string }
		}
		must(t, json.Unmarshal(text, &bom))
		names := make(map[string]bool)
		for _, component := range bom.Components {
			names[component.Name] = true
			if component.Version == "" || component.Purl == "" {
				t.Errorf("the SBOM has %+v", component)
			}
		}
		if bom.BOMFormat != "CycloneDX" || !names["std"] || !names["github.com/hibiken/asynq"] || names["github.com/anishathalye/porcupine"] {
			t.Errorf("the SBOM has %v, want the modules of the program, and not those of its tests", names)
		}
		return
	}
	t.Error("there is no SBOM")
}
