package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"lockstep/configs"
)

const composeFolder = "../configs/deploy/compose"

// composeFile is the part of the Compose specification that our file uses. Other keys are errors.
type composeFile struct {
	Name     string
	Services map[string]composeService
	Volumes  map[string]struct{}
}

type composeService struct {
	Image           string
	Command         []string
	DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
	Environment     map[string]string
	Volumes         []string
	Tmpfs           []string
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
	Restart         string
	Deploy          struct{ Replicas int }
	Healthcheck     struct {
		Test              []string
		Interval, Timeout string
		StartPeriod       string `yaml:"start_period"`
		Retries           int
	}
}

func TestComposeFileSuitsTheWorker(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(composeFolder, "compose.yaml"))
	must(t, err)
	config, err := os.ReadFile(filepath.Join(composeFolder, "config", "lockstep.yaml"))
	must(t, err)
	if got := composeFaults(t, string(text), string(config)); len(got) > 0 {
		t.Errorf("%s: %q", composeFolder, got)
	}
	for _, broken := range []struct{ from, to, fault string }{
		{"read_only:", "readonly:", "field readonly not found"},
		{"--maxmemory-policy, noeviction", "--maxmemory-policy, allkeys-lru", "Redis evicts"},
		{`--appendonly, "yes"`, `--appendonly, "no"`, "Redis forgets"},
		{`["redis:/data"]`, `["data:/data"]`, "the volume data"},
		{"replicas: 2", "replicas: 1", "1 worker"},
		{"[start, --watch]", "[start, --wach]", "the command"},
		{"lockstep, health", "lockstep, healthy", "the health check"},
		{"stop_grace_period: 65s", "stop_grace_period: 50s", "the grace period"},
		{"REDIS_URL: redis://redis:6379/0", "REDIS_URL: redis://cache:6379/0", "no service cache"},
		{"LOCKSTEP_CONFIG:", "LOCKSTEP_WORKER__CONCURENCY:", "check --strict"},
		{"LOCKSTEP_CONFIG: /etc/lockstep", "LOCKSTEP_CONFIG: /etc/other", "the config is not mounted"},
		{"service_healthy", "service_health", "waits for Redis"},
	} {
		changed := strings.Replace(string(text), broken.from, broken.to, 1)
		if got := composeFaults(t, changed, string(config)); !strings.Contains(strings.Join(got, "\n"), broken.fault) {
			t.Errorf("with %s, the faults are %q, want %q", broken.to, got, broken.fault)
		}
	}
	if got := composeFaults(t, string(text), strings.Replace(string(config), "schedule:", "shedule:", 1)); len(got) == 0 {
		t.Error("a mistake in the config is not found")
	}
}

// composeFaults returns where a Compose file or the config beside it does not suit the tool.
func composeFaults(t *testing.T, text, config string) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var file composeFile
	if err := yaml.Load([]byte(text), &file, yaml.WithKnownFields()); err != nil {
		return []string{err.Error()}
	}
	for name, service := range file.Services {
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if _, ok := file.Volumes[source]; !ok && !strings.HasPrefix(source, "./") {
				fault("%s: the volume %s is not declared", name, source)
			}
		}
		if service.Restart != "unless-stopped" {
			fault("%s: restart is %q", name, service.Restart)
		}
	}
	// option returns the value of an option of redis-server.
	redis := file.Services["redis"]
	option := func(name string) string {
		if i := slices.Index(redis.Command, name); i >= 0 && i+1 < len(redis.Command) {
			return redis.Command[i+1]
		}
		return ""
	}
	if got := option("--maxmemory-policy"); got != "noeviction" {
		fault("Redis evicts keys: %s", got)
	}
	if got := option("--appendonly"); got != "yes" {
		fault("Redis forgets what it was told when it restarts: %q", got)
	}

	worker := file.Services["worker"]
	if worker.Deploy.Replicas < 2 {
		fault("%d worker, want two", worker.Deploy.Replicas)
	}
	if !worker.ReadOnly || !slices.Contains(worker.CapDrop, "ALL") || !slices.Contains(worker.SecurityOpt, "no-new-privileges:true") {
		fault("the worker keeps privileges")
	}
	if worker.DependsOn["redis"].Condition != "service_healthy" || len(redis.Healthcheck.Test) == 0 {
		fault("no worker waits for Redis: %v", worker.DependsOn)
	}
	if err := knows(t, worker.Command); err != nil {
		fault("the command %q: %v", worker.Command, err)
	}
	if check := worker.Healthcheck.Test; len(check) < 2 || check[0] != "CMD" || check[1] != "lockstep" {
		fault("the health check is %q", check)
	} else if err := knows(t, check[2:]); err != nil {
		fault("the health check %q: %v", check, err)
	}
	host, _, _ := strings.Cut(strings.TrimPrefix(worker.Environment["REDIS_URL"], "redis://"), ":")
	if _, ok := file.Services[host]; !ok {
		fault("REDIS_URL: there is no service %s", host)
	}
	if !slices.Contains(worker.Volumes, "./config:"+worker.Environment["LOCKSTEP_CONFIG"]+":ro") {
		fault("the config is not mounted at LOCKSTEP_CONFIG")
	}

	path := writeFile(t, "lockstep.yaml", config)
	env := toolEnv(t)
	for name, value := range worker.Environment {
		if name != "LOCKSTEP_CONFIG" {
			env = append(env, name+"="+value)
		}
	}
	if stdout, stderr, code := runTool(t, env, "check", "--strict", "-c", path); code != 0 {
		fault("check --strict: exit code %d, %s%s", code, stdout, stderr)
	}
	grace, err := time.ParseDuration(worker.StopGracePeriod)
	if err != nil {
		fault("the grace period: %v", err)
	}
	loaded, err := configs.Load(configs.Options{Paths: []string{path}, Environ: env})
	if err != nil {
		fault("the config: %v", err)
	} else if want := loaded.Settings.Worker.DrainTimeout + afterDrain; grace != want {
		fault("the grace period is %s, want drain_timeout and %s: %s", grace, afterDrain, want)
	}
	return faults
}
