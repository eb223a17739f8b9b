package cmd

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const containerFile = "../configs/deploy/container/Containerfile"

// podman runs podman with storage of its own, which needs no driver of the kernel, and returns what
// it prints.
func podman(t *testing.T, storage string, args ...string) (string, error) {
	t.Helper()
	all := append([]string{"--root", filepath.Join(storage, "root"), "--runroot", filepath.Join(storage, "run"), "--storage-driver", "vfs"}, args...)
	out, err := exec.CommandContext(t.Context(), "podman", all...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// TestImagesRunTheToolWithoutRoot builds both images, looks at their config, and runs a worker in
// the root file system of each: on many machines that run tests, podman can build containers but
// cannot start them.
func TestImagesRunTheToolWithoutRoot(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("podman"); err != nil && !allTests() {
		t.Skip("podman is missing")
	}
	if os.Getuid() != 0 {
		t.Skip("only root can change to the root file system and the user of an image")
	}
	file, err := os.ReadFile(containerFile)
	must(t, err)
	storage, err := os.MkdirTemp("", "podman") //nolint:usetesting // podman refuses a long path
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(storage)) })
	context := t.TempDir()
	must(t, os.Link(plainPath, filepath.Join(context, "lockstep")))
	// The base of the image with a shell comes from a registry; here it is a local one.
	write(t, filepath.Join(context, "Base"), "FROM scratch\nCOPY marker /marker\n")
	write(t, filepath.Join(context, "marker"), "")
	if out, err := podman(t, storage, "build", "--network", "none", "--file", filepath.Join(context, "Base"), "--tag", "base", context); err != nil {
		t.Fatalf("podman build: %v\n%s", err, out)
	}
	build := func(name, text, target string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "Containerfile")
		write(t, path, text)
		// Docker's format: OCI has no HEALTHCHECK. Without layers: this storage copies each one.
		if out, err := podman(t, storage, "build", "--layers=false", "--network", "none", "--format", "docker", "--file", path, "--target", target,
			"--build-arg", "BASE=localhost/base", "--tag", name, context); err != nil {
			t.Fatalf("podman build --target %s: %v\n%s", target, err, out)
		}
	}
	for _, target := range []string{"bare", "shell"} {
		build(target, string(file), target)
		for _, fault := range imageFaults(t, storage, target) {
			t.Errorf("%s: %s", target, fault)
		}
	}
	root, err := podman(t, storage, "image", "mount", "shell")
	must(t, err)
	if !exists(filepath.Join(root, "marker")) {
		t.Error("the image with a shell has nothing of its base")
	}
	for _, broken := range []struct{ from, to, fault string }{
		{"USER 65532:65532", "USER 0:0", "the user"},
		{`CMD ["start", "--watch"]`, `CMD ["start", "--wach"]`, "the command"},
		{`"health"]`, `"healthy"]`, "the health check"},
		{"COPY lockstep /usr/bin/lockstep", "COPY lockstep /usr/bin/other", "version"},
	} {
		build("broken", strings.ReplaceAll(string(file), broken.from, broken.to), "bare")
		if got := imageFaults(t, storage, "broken"); !slices.ContainsFunc(got, func(fault string) bool { return strings.HasPrefix(fault, broken.fault) }) {
			t.Errorf("with %s, the faults are %q, want %q", broken.to, got, broken.fault)
		}
	}
	runInImage(t, storage, "bare")
}

// imageFaults returns what is wrong with an image.
func imageFaults(t *testing.T, storage, image string) (faults []string) {
	t.Helper()
	inspect := func(field string, value any) {
		t.Helper()
		out, err := podman(t, storage, "image", "inspect", image, "--format", "{{json "+field+"}}")
		must(t, err)
		must(t, json.Unmarshal([]byte(out), value))
	}
	var config struct {
		User            string
		Entrypoint, Cmd []string
	}
	var health struct{ Test []string }
	inspect(".Config", &config)
	inspect(".HealthCheck", &health)
	if config.User != "65532:65532" {
		faults = append(faults, "the user is "+config.User)
	}
	if err := knows(t, config.Cmd); err != nil {
		faults = append(faults, "the command: "+err.Error())
	}
	if check := health.Test; len(check) < 3 || check[0] != "CMD" {
		faults = append(faults, "the health check is "+strings.Join(check, " "))
	} else if err := knows(t, check[2:]); err != nil {
		faults = append(faults, "the health check: "+err.Error())
	}
	root, err := podman(t, storage, "image", "mount", image)
	must(t, err)
	version := exec.CommandContext(t.Context(), "chroot", append([]string{"--userspec=65532:65532", root}, append(config.Entrypoint, "version")...)...)
	if out, err := version.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "lockstep ") {
		faults = append(faults, "version: "+string(out))
	}
	return faults
}

// runInImage runs a worker as the user of the image, in its root file system, with a config and
// with /proc, but with no folder that it can write.
func runInImage(t *testing.T, storage, image string) {
	t.Helper()
	root, err := podman(t, storage, "image", "mount", image)
	must(t, err)
	calls := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case calls <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(server.Close)
	for _, folder := range []string{"proc", "etc/lockstep"} {
		must(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	write(t, filepath.Join(root, "etc/lockstep/lockstep.yaml"), "redis: {url: embedded}\njobs: {call: {every: 1s, http: {url: "+server.URL+"}}}\n")
	must(t, os.Chmod(filepath.Join(root, "etc/lockstep/lockstep.yaml"), 0o644))
	worker := launchProgram(t, "unshare", []string{"PATH=" + os.Getenv("PATH"), "LOCKSTEP_CONFIG=/etc/lockstep", "HOME=/tmp", "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0"},
		"--mount", "sh", "-c", `mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && mount --bind /proc "$1/proc" && exec chroot --userspec=65532:65532 "$1" /usr/bin/lockstep start --watch`, "sh", root)
	select {
	case <-calls:
	case <-worker.done:
		t.Fatalf("the worker has ended: %s", worker.stderr)
	case <-time.After(time.Minute):
		t.Fatal("the job was not run within a minute")
	}
	page := pageOf(t, worker)
	health := exec.CommandContext(t.Context(), "chroot", "--userspec=65532:65532", root, "/usr/bin/lockstep", "health")
	health.Env = []string{"LOCKSTEP_ADMIN__LISTEN=" + page}
	if out, err := health.CombinedOutput(); err != nil {
		t.Errorf("health: %v %s", err, out)
	}
	worker.signal(syscall.SIGTERM)
	if code := worker.code(30 * time.Second); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}
