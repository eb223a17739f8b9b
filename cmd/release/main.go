package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// allPlatforms are those of `make release`. On others, such as windows/amd64, the commands that
// inspect and act work too.
const allPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"

func main() {
	out := flag.String("o", "../../bin/release", "the folder to write")
	platforms := flag.String("platforms", allPlatforms, "OS/ARCH, separated by commas")
	dirty := flag.Bool("dirty", false, "build a checkout that has changes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "../..", *out, strings.Split(*platforms, ","), *dirty); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// source is what a release is made from.
type source struct {
	root     string // of the checkout
	version  string // a tag, or devel-COMMIT
	revision string
	date     time.Time // of the commit
}

// readSource reads the commit that is checked out at root.
func readSource(ctx context.Context, root string, dirty bool) (*source, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	changes, err := git("--no-optional-locks", "status", "--porcelain") // the index stays as it is
	if err != nil {
		return nil, err
	}
	if changes != "" && !dirty {
		return nil, fmt.Errorf("the checkout has changes, so no commit names what would be built: commit them, or use -dirty:\n%s", changes)
	}
	commit, err := git("log", "-1", "--format=%H %ct")
	if err != nil {
		return nil, err
	}
	revision, seconds, _ := strings.Cut(commit, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the time of commit %s: %w", revision, err)
	}
	s := &source{root: root, version: "devel-" + revision[:8], revision: revision, date: time.Unix(unix, 0).UTC()}
	// an error means that the commit has no tag
	if tag, err := git("describe", "--tags", "--exact-match"); err == nil {
		s.version = tag
	}
	if changes != "" {
		s.version += "-dirty"
	}
	return s, nil
}

// checkLast compares the newest tag before this commit with cmd/release/last, which names the
// release that `make upgrade` rolls out over.
func (s *source) checkLast(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "git", "-C", s.root, "describe", "--tags", "--abbrev=0", s.revision+"^").Output()
	if err != nil {
		return nil //nolint:nilerr // there is no tag before this commit
	}
	tag := strings.TrimSpace(string(out))
	commit, err := exec.CommandContext(ctx, "git", "-C", s.root, "rev-parse", tag+"^{commit}").Output()
	if err != nil {
		return fmt.Errorf("the commit of tag %s: %w", tag, err)
	}
	text, err := os.ReadFile(filepath.Join(s.root, "cmd", "release", "last"))
	if err != nil {
		return err
	}
	if want := strings.TrimSpace(string(commit)); !strings.Contains(string(text), "\n"+want+" ") {
		return fmt.Errorf("the last release is %s: write its commit and its format into cmd/release/last (%s FORMAT), and run make upgrade", tag, want)
	}
	return nil
}

// run writes a release for these platforms into the folder out.
func run(ctx context.Context, root, out string, platforms []string, dirty bool) error {
	s, err := readSource(ctx, root, dirty)
	if err != nil {
		return err
	}
	if err := s.checkLast(ctx); err != nil {
		return err
	}
	if err := empty(out); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "lockstep-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // what it holds is in out
	around, err := s.files()
	if err != nil {
		return err
	}
	for _, platform := range platforms {
		system, arch, ok := strings.Cut(platform, "/")
		if !ok {
			return fmt.Errorf("platform %q: want OS/ARCH, as in linux/amd64", platform)
		}
		if err := s.build(ctx, filepath.Join(work, system+"_"+arch), out, system, arch, around); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	return sums(out)
}

// empty makes the folder of a release, without the files of an earlier one. It refuses a folder
// with anything else, such as a home folder that was given by mistake.
func empty(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "lockstep_") && entry.Name() != sumsFile || entry.IsDir() {
			return fmt.Errorf("%s has %s, which no release made: choose an empty folder with -o", folder, entry.Name())
		}
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(folder, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// build makes everything for one platform.
func (s *source) build(ctx context.Context, work, out, system, arch string, around []file) error {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	program := filepath.Join(work, "lockstep")
	stamp := fmt.Sprintf("-s -w -X lockstep/cmd.version=%s -X lockstep/cmd.revision=%s -X lockstep/cmd.date=%s", s.version, s.revision, s.date.Format(time.RFC3339))
	// -buildvcs=false: the stamps above do not depend on how the checkout was made
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", stamp, "-o", program, "./cmd/lockstep")
	build.Dir = s.root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	name := fmt.Sprintf("lockstep_%s_%s_%s", s.version, system, arch)
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	files := append([]file{{path: "lockstep", mode: 0o755, text: text}}, around...)
	if err := s.archive(filepath.Join(out, name+".tar.gz"), name, files); err != nil {
		return err
	}
	if err := s.bill(program, filepath.Join(out, name+".cdx.json")); err != nil {
		return err
	}
	if system != "linux" {
		return nil
	}
	return s.packages(ctx, work, out, arch, files)
}

const sumsFile = "SHA256SUMS"

// sums writes the file of checksums, as sha256sum -c reads it.
func sums(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var lines []string
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		lines = append(lines, hex.EncodeToString(sum[:])+"  "+entry.Name()+"\n")
	}
	if len(lines) == 0 {
		return errors.New("nothing was built")
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(folder, sumsFile), []byte(strings.Join(lines, "")), 0o644)
}
