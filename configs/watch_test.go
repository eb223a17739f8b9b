package configs

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// watched is a watched config. Each load appends the number of its jobs, or -1 for a refused load.
type watched struct {
	t      *testing.T
	dir    string
	loads  chan int
	inputs atomic.Pointer[Inputs]
}

func watch(t *testing.T, path string, files map[string]string) *watched {
	t.Helper()
	w := &watched{t: t, dir: writeFiles(t, files), loads: make(chan int, 100)}
	load := func(context.Context) {
		inputs := new(Inputs)
		c, err := Load(Options{Paths: []string{filepath.Join(w.dir, path)}, Environ: []string{}, Inputs: inputs})
		w.inputs.Store(inputs)
		if err != nil {
			w.loads <- -1
			return
		}
		w.loads <- len(c.Jobs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	load(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, w.inputs.Load, load, func(err error) { t.Error(err) })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

// next waits for the next load.
func (w *watched) next(want int, after string) {
	w.t.Helper()
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case got := <-w.loads:
		if got != want {
			w.t.Errorf("after %s: got %d jobs, want %d", after, got, want)
		}
	case <-timer.C:
		w.t.Fatalf("after %s: nothing was loaded", after)
	}
}

func (w *watched) write(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	// A rename is atomic, so no load sees half of the file.
	whole := filepath.Join(w.t.TempDir(), "file")
	if err := os.WriteFile(whole, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(whole, path); err != nil {
		w.t.Fatal(err)
	}
}

const oneJob, twoJobs = "jobs: {a: {command: [a]}}", "jobs: {a: {command: [a]}, b: {command: [a]}}"

func TestIncludedFilesAreWatched(t *testing.T) {
	t.Parallel()
	w := watch(t, "lockstep.yaml", map[string]string{
		"lockstep.yaml": "include: [conf.d/*.yaml, more/x.yaml]", "conf.d/a.yaml": oneJob, "more/x.yaml": "",
	})
	w.next(1, "the start")
	w.write("conf.d/b.yaml", "jobs: {c: {command: [a]}}")
	w.next(2, "a file that a pattern matches")
	w.write("more/x.yaml", "jobs: {d: {command: [a]}}")
	w.next(3, "a change of an included file")
	if err := os.Remove(filepath.Join(w.dir, "conf.d/b.yaml")); err != nil {
		t.Fatal(err)
	}
	w.next(2, "a file disappeared")
	if err := os.RemoveAll(filepath.Join(w.dir, "more")); err != nil {
		t.Fatal(err)
	}
	w.next(-1, "a folder disappeared")
	w.write("more/x.yaml", "jobs: {d: {command: [a]}}")
	w.next(2, "a folder came back")
}

func TestUnchangedContentsAreNotReloaded(t *testing.T) {
	t.Parallel()
	w := watch(t, "lockstep.yaml", map[string]string{"lockstep.yaml": oneJob, "other.log": ""})
	w.next(1, "the start")
	w.write("other.log", "line") // not a config
	w.write("lockstep.yaml", oneJob)
	if err := os.Chtimes(filepath.Join(w.dir, "lockstep.yaml"), time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	w.write("lockstep.yaml", twoJobs)
	w.next(2, "the first change of what it says")
}

func TestSecretThatAppearsLaterIsLoaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, "lockstep.yaml", map[string]string{
		"lockstep.yaml": "jobs: {a: {command: [a, '${file:" + dir + "/secret}']}}",
	})
	w.next(-1, "the start without the secret")
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.next(1, "the secret is there")
}

func TestCyclicLinksAreFollowedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for from, to := range map[string]string{"a": "b", "b": "a"} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	inputs := new(Inputs)
	inputs.missing(filepath.Join(dir, "a", "lockstep.yaml"))
	if folders := inputs.watched(); !folders[dir] {
		t.Errorf("got %v, want the folder of the links", folders)
	}
}

// TestFileIsLoadedOnceItIsWhole writes a file in place and step by step, one step before each look.
// The writes go through another link to the file, so no event reports them, as on a network file
// system: each step could be all that the file will ever say.
func TestFileIsLoadedOnceItIsWhole(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"lockstep.yaml": oneJob})
	path, link := filepath.Join(dir, "lockstep.yaml"), filepath.Join(t.TempDir(), "link")
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	inputs := new(Inputs)
	load := func() (jobs int) {
		c, err := Load(Options{Paths: []string{path}, Environ: []string{}, Inputs: inputs})
		if err != nil {
			t.Fatal(err)
		}
		return len(c.Jobs)
	}
	load()
	steps := []string{"", "jobs: {}", twoJobs}
	var began time.Time
	asked := func() *Inputs {
		switch {
		case began.IsZero(): // not a look: Watch asks which folders to watch
			began = time.Now()
		case len(steps) > 0:
			if time.Since(began) > settleMost/2 { // a slow machine: Watch may not wait much longer
				steps = steps[len(steps)-1:]
			}
			if err := os.WriteFile(link, []byte(steps[0]), 0o600); err != nil {
				t.Error(err)
			}
			steps = steps[1:]
		}
		return inputs
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got := -1
	Watch(ctx, asked, func(context.Context) {
		got = load()
		cancel()
	}, func(err error) { t.Error(err) })
	if got != 2 {
		t.Errorf("loaded %d jobs, want the 2 of the whole file", got)
	}
}
