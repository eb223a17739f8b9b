package contract

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/oapi-codegen/oapi-codegen/v2/pkg/codegen"

	"lockstep/locks/redistest"
)

// The environment of talk_test.go: the addresses of a worker and of its Redis.
const (
	workerEnv = "LOCKSTEP_CONTRACT_WORKER"
	redisEnv  = "LOCKSTEP_CONTRACT_REDIS"
)

// generate returns a client that is generated from a document.
func generate(t *testing.T, document []byte) string {
	t.Helper()
	spec, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		t.Fatal(err)
	}
	o := codegen.Configuration{PackageName: "client", Generate: codegen.GenerateOptions{Client: true, Models: true}}
	text, err := codegen.Generate(spec, o.UpdateDefaults())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// startWorker builds lockstep, starts a worker with a config, and returns the URL of its API. When
// the test ends, the worker must stop in order.
func startWorker(t *testing.T, redis, config string) string {
	t.Helper()
	folder := t.TempDir()
	program, file := filepath.Join(folder, "lockstep"), filepath.Join(folder, "lockstep.yaml")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/lockstep")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0") // as make build
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	worker := exec.Command(program, "start", "-c", file)
	worker.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder, "TMPDIR=" + folder, "REDIS_URL=" + redis, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0"}
	log, err := worker.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	ready := make(chan string, 1)
	go func() { // ends with the process, which the cleanup ends
		defer close(ready)
		url := ""
		for lines := bufio.NewScanner(io.TeeReader(log, &told)); lines.Scan(); {
			var line struct{ Msg, URL string }
			switch _ = json.Unmarshal(lines.Bytes(), &line); line.Msg { // other texts have no Msg
			case "admin page is served":
				url = line.URL
			case "worker is ready":
				select {
				case ready <- url:
				default: // it is not the first time
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = worker.Process.Signal(syscall.SIGTERM) // an error: it has exited already
		for range ready {
		}
		if err := worker.Wait(); err != nil {
			t.Errorf("the worker: %v\n%s", err, told.String())
		}
	})
	url := <-ready
	if url == "" {
		t.Fatal("the worker has exited")
	}
	return url
}

// The client exists only in an overlay of this module, and so do the tests that need it: see
// talk_test.go. A client in the tree would be thousands of lines that change with each field of the
// API.
func TestAGeneratedClientTalksToAWorker(t *testing.T) {
	t.Parallel()
	redis := redistest.New(t, redistest.Options{})
	url := startWorker(t, redis.URL(), "{worker: {queues: {polite: 1}}, jobs: {greet: {command: [echo, hello], queue: polite}}}")
	folder := t.TempDir()
	generated, overlay := filepath.Join(folder, "client.go"), filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(generated, []byte(generate(t, documentOf(t, url))), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "client", "generated.go"): generated}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	talk := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-tags", "generated", "-overlay", overlay, "-run", "^TestTalk$", "-v", ".")
	talk.Env = append(os.Environ(), workerEnv+"="+url, redisEnv+"="+redis.URL())
	if text, err := talk.CombinedOutput(); err != nil || !strings.Contains(string(text), "--- PASS: TestTalk") {
		t.Errorf("%v:\n%s", err, text)
	}
}
