package helm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kubejson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// helmPackage renders the chart. Its first build takes minutes, and later ones come from the cache.
const helmPackage = "helm.sh/helm/v3/cmd/helm@v3.22.0"

// helmPath is helm, which TestMain builds.
var helmPath string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	folder, err := os.MkdirTemp("", "lockstep-helm-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	helmPath = filepath.Join(folder, "helm")
	install := exec.Command("go", "install", helmPackage)
	install.Env = append(os.Environ(), "GOBIN="+folder)
	if out, err := install.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build helm: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// afterDrain is what cmd/manager.go gives a worker to exit after its drain timeout, in seconds.
const afterDrain = 15

const chart = "lockstep"

// template renders the chart with these values, and returns what helm prints. Its error is helm's.
func template(t *testing.T, chart, values string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(path, []byte(values), 0o600))
	return helm(t, "template", "shop", chart, "--namespace", "jobs", "--kube-version", "1.34", "--values", path)
}

func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	run := exec.CommandContext(t.Context(), helmPath, args...)
	var stderr bytes.Buffer
	run.Stderr = &stderr
	out, err := run.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ServiceMonitor and PrometheusRule are the parts of the Prometheus operator's types that the chart
// uses.
type ServiceMonitor struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		JobLabel  string             `json:"jobLabel"`
		Selector  meta.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port        string `json:"port"`
			Path        string `json:"path"`
			Interval    string `json:"interval"`
			HonorLabels bool   `json:"honorLabels"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// PrometheusRule has the groups of a rules file.
type PrometheusRule struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            rules `json:"spec"`
}

type rules struct {
	Groups []struct {
		Name     string `json:"name"`
		Interval string `json:"interval,omitempty"`
		Rules    []struct {
			Alert         string            `json:"alert,omitempty"`
			Record        string            `json:"record,omitempty"`
			Expr          string            `json:"expr"`
			For           string            `json:"for,omitempty"`
			KeepFiringFor string            `json:"keep_firing_for,omitempty"`
			Labels        map[string]string `json:"labels,omitempty"`
			Annotations   map[string]string `json:"annotations,omitempty"`
		} `json:"rules"`
	} `json:"groups"`
}

// objects are what a chart makes, by kind. Each kind occurs once.
type objects struct {
	deployment *apps.Deployment
	config     *core.ConfigMap
	service    *core.Service
	account    *core.ServiceAccount
	budget     *policy.PodDisruptionBudget
	network    *networking.NetworkPolicy
	monitor    *ServiceMonitor
	rule       *PrometheusRule
}

// decode decodes what helm printed. A field that Kubernetes does not know is an error.
func decode(printed string) (*objects, error) {
	o := &objects{deployment: new(apps.Deployment), config: new(core.ConfigMap), service: new(core.Service), account: new(core.ServiceAccount)}
	for document := range strings.SplitSeq(printed, "\n---\n") {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, document)
		}
		var object any
		switch kind.APIVersion + " " + kind.Kind {
		case "apps/v1 Deployment":
			object = o.deployment
		case "v1 ConfigMap":
			object = o.config
		case "v1 Service":
			object = o.service
		case "v1 ServiceAccount":
			object = o.account
		case "policy/v1 PodDisruptionBudget":
			o.budget = new(policy.PodDisruptionBudget)
			object = o.budget
		case "networking.k8s.io/v1 NetworkPolicy":
			o.network = new(networking.NetworkPolicy)
			object = o.network
		case "monitoring.coreos.com/v1 ServiceMonitor":
			o.monitor = new(ServiceMonitor)
			object = o.monitor
		case "monitoring.coreos.com/v1 PrometheusRule":
			o.rule = new(PrometheusRule)
			object = o.rule
		case " ":
			continue // the end of a template that makes nothing
		default:
			return nil, fmt.Errorf("an object of the kind %q %q", kind.APIVersion, kind.Kind)
		}
		text, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.Kind, err)
		}
		// as the API of Kubernetes decodes: encoding/json would accept any case of letters
		unknown, err := kubejson.UnmarshalStrict(text, object)
		if err := errors.Join(append(unknown, err)...); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.Kind, err)
		}
	}
	return o, nil
}

// sets are values that use each part of the chart.
var sets = map[string]string{
	"defaults": "",
	"drain":    "drainTimeout: 1h2m3s\nreplicas: 0\n",
	"secrets": `
redis: {url: "rediss://lockstep@redis.example:6380/0", secret: shop-redis, signed: true}
secrets: [ops, pgpass]
pullSecrets: [registry]
`,
	"everything": `
replicas: 5
image: {repository: registry.example/lockstep, tag: v1.2.3}
networkPolicy:
  enabled: true
  ingress: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  redis: [{podSelector: {matchLabels: {app: redis}}}]
  egress: [{ports: [{port: 443, protocol: TCP}], to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
podDisruptionBudget: {maxUnavailable: 40%}
podAnnotations: {example.com/a: "1"}
podLabels: {team: shop}
nodeSelector: {disk: ssd}
tolerations: [{key: jobs, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
serviceAccount: {annotations: {example.com/role: jobs}}
env: [{name: GREETING, value: hello}]
`,
	"open network": "networkPolicy: {enabled: true}\npodDisruptionBudget: {enabled: false}\n",
}

var graces = map[string]int64{"defaults": 50 + afterDrain, "drain": 3723 + afterDrain, "secrets": 50 + afterDrain, "everything": 50 + afterDrain, "open network": 50 + afterDrain}

func TestChartMakesWhatKubernetesKnows(t *testing.T) {
	for name, values := range sets {
		printed, err := template(t, chart, values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		o, err := decode(printed)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, fault := range o.faults(graces[name]) {
			t.Errorf("%s: %s", name, fault)
		}
		if got, want := o.budget != nil, name != "open network"; got != want {
			t.Errorf("%s: it has a PodDisruptionBudget: %t, want %t", name, got, want)
		}
		if got, want := o.network != nil, name == "everything" || name == "open network"; got != want {
			t.Errorf("%s: it has a NetworkPolicy: %t, want %t", name, got, want)
		}
		if got, want := o.monitor != nil && o.rule != nil, name == "everything"; got != want {
			t.Errorf("%s: it is monitored: %t, want %t", name, got, want)
		}
		files := o.files()
		if got, want := slices.Contains(files, "/run/secrets/pgpass"), name == "secrets"; got != want {
			t.Errorf("%s: the volumes are %q", name, files)
		}
	}
}

// faults returns what is wrong with objects that Kubernetes would accept.
func (o *objects) faults(grace int64) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	pod := o.deployment.Spec.Template
	if len(pod.Spec.Containers) != 1 {
		return []string{fmt.Sprintf("%d containers, want one", len(pod.Spec.Containers))}
	}
	worker := pod.Spec.Containers[0]
	if got := pod.Spec.TerminationGracePeriodSeconds; got == nil || *got != grace {
		fault("the grace period is %v, want %d seconds", got, grace)
	}
	for what, probe := range map[string]*core.Probe{"/livez": worker.LivenessProbe, "/livez at the start": worker.StartupProbe, "/readyz": worker.ReadinessProbe} {
		path, _, _ := strings.Cut(what, " ")
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != worker.Ports[0].Name {
			fault("the probe of %s is %v", what, probe)
		}
	}
	security, own := pod.Spec.SecurityContext, worker.SecurityContext
	switch {
	case security == nil || security.RunAsNonRoot == nil || !*security.RunAsNonRoot || security.RunAsUser == nil || *security.RunAsUser != 65532:
		fault("the Pod may run as root: %v", security)
	case security.SeccompProfile == nil || security.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault:
		fault("the seccomp profile is %v", security.SeccompProfile)
	case own == nil || own.ReadOnlyRootFilesystem == nil || !*own.ReadOnlyRootFilesystem:
		fault("the root is not read-only: %v", own)
	case own.AllowPrivilegeEscalation == nil || *own.AllowPrivilegeEscalation || own.Capabilities == nil || !slices.Equal(own.Capabilities.Drop, []core.Capability{"ALL"}):
		fault("the container keeps privileges: %v", own)
	}
	if links := pod.Spec.EnableServiceLinks; links == nil || *links {
		fault("variables of Services can look like settings")
	}
	if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token {
		fault("the Pod has a token for the API of Kubernetes")
	}
	volumes := make(map[string]core.Volume)
	for _, volume := range pod.Spec.Volumes {
		volumes[volume.Name] = volume
	}
	for _, mount := range worker.VolumeMounts {
		volume, ok := volumes[mount.Name]
		delete(volumes, mount.Name)
		switch {
		case !ok:
			fault("%s mounts %s, which does not exist", mount.MountPath, mount.Name)
		case mount.SubPath != "":
			fault("%s is a subPath, which never changes", mount.MountPath)
		case mount.MountPath == "/etc/lockstep" && (volume.ConfigMap == nil || volume.ConfigMap.Name != o.config.Name):
			fault("the config is in %v, want the ConfigMap %s", volume, o.config.Name)
		case strings.HasPrefix(mount.MountPath, "/run/secrets/") && (volume.Secret == nil || volume.Secret.SecretName == ""):
			fault("%s is not a Secret: %v", mount.MountPath, volume)
		}
	}
	if len(volumes) > 0 {
		fault("no container mounts %q", slices.Collect(maps.Keys(volumes)))
	}
	if !slices.Contains(worker.Args, "--watch") {
		fault("the worker does not watch its config: %q", worker.Args)
	}

	selectors := map[string]labels.Selector{"Service": labels.SelectorFromSet(o.service.Spec.Selector)}
	from := func(kind string, selector *meta.LabelSelector) {
		chosen, err := meta.LabelSelectorAsSelector(selector)
		if err != nil {
			fault("%s: %v", kind, err)
			return
		}
		selectors[kind] = chosen
	}
	from("Deployment", o.deployment.Spec.Selector)
	if o.budget != nil {
		from("PodDisruptionBudget", o.budget.Spec.Selector)
	}
	if o.network != nil {
		from("NetworkPolicy", &o.network.Spec.PodSelector)
	}
	for kind, selector := range selectors {
		if selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
			fault("%s selects %s, which is not the Pod with %v", kind, selector, pod.Labels)
		}
	}
	if o.monitor != nil {
		from("ServiceMonitor", &o.monitor.Spec.Selector)
		if selector := selectors["ServiceMonitor"]; selector.Empty() || !selector.Matches(labels.Set(o.service.Labels)) {
			fault("the ServiceMonitor selects %s, which is not the Service with %v", selector, o.service.Labels)
		}
		if got := o.monitor.Spec.Endpoints; len(got) != 1 || got[0].Port != o.service.Spec.Ports[0].Name || got[0].Path != "/metrics" {
			fault("the ServiceMonitor scrapes %v", got)
		} else if !got[0].HonorLabels {
			fault("the label job of metrics becomes exported_job")
		}
		if label := o.monitor.Spec.JobLabel; o.service.Labels[label] != "lockstep" {
			fault("Prometheus takes the job name from the label %q of the Service with %v, want the name lockstep, as in the rules", label, o.service.Labels)
		}
	}
	if o.rule != nil && (len(o.rule.Spec.Groups) == 0 || len(o.rule.Spec.Groups[0].Rules) == 0) {
		fault("the PrometheusRule has no rules")
	}
	if o.network != nil {
		for _, rule := range o.network.Spec.Ingress {
			if len(rule.From) == 0 {
				fault("the NetworkPolicy lets all Pods in")
			}
		}
		if len(o.network.Spec.PolicyTypes) != 2 {
			fault("the NetworkPolicy has the types %v", o.network.Spec.PolicyTypes)
		}
	}
	return faults
}

// files returns where the container mounts volumes.
func (o *objects) files() (paths []string) {
	for _, mount := range o.deployment.Spec.Template.Spec.Containers[0].VolumeMounts {
		paths = append(paths, mount.MountPath)
	}
	return paths
}

// Each of these mistakes in the chart is found.
func TestMistakesInTheChartAreFound(t *testing.T) {
	for _, broken := range []struct{ file, from, to, fault string }{
		{"deployment.yaml", "readOnlyRootFilesystem:", "readOnlyRootFileSystem:", `unknown field "spec.template.spec.containers[0].securityContext.readOnlyRootFileSystem"`},
		{"deployment.yaml", "replicas:", "replica:", `unknown field "spec.replica"`},
		{"deployment.yaml", "path: /readyz", "path: /ready", "the probe of /readyz"},
		{"deployment.yaml", `.Values.drainTimeout | int) 15`, `.Values.drainTimeout | int) 1`, "the grace period"},
		{"deployment.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "may run as root"},
		{"deployment.yaml", "mountPath: /etc/lockstep", "subPath: a, mountPath: /etc/lockstep", "never changes"},
		{"service.yaml", `include "lockstep.selector" .`, `dict "app" "other" | toYaml`, "Service selects"},
		{"networkpolicy.yaml", "from:", "form:", `unknown field "spec.ingress[0].form"`},
		{"monitoring.yaml", "path: /metrics", "path: /", "the ServiceMonitor scrapes"},
		{"monitoring.yaml", "honorLabels: true", "honorLabels: false", "becomes exported_job"},
		{"monitoring.yaml", "jobLabel: app.kubernetes.io/name", "jobLabel: app.kubernetes.io/instance", "takes the job name from"},
	} {
		folder := filepath.Join(t.TempDir(), "lockstep")
		must(t, os.CopyFS(folder, os.DirFS(chart)))
		path := filepath.Join(folder, "templates", broken.file)
		text, err := os.ReadFile(path)
		must(t, err)
		changed := strings.Replace(string(text), broken.from, broken.to, 1)
		if changed == string(text) {
			t.Errorf("%s has no %q", broken.file, broken.from)
		}
		must(t, os.WriteFile(path, []byte(changed), 0o600))
		printed, err := template(t, folder, sets["everything"])
		var found []string
		if err == nil {
			var o *objects
			if o, err = decode(printed); err == nil {
				found = o.faults(graces["everything"])
			}
		}
		if err != nil {
			found = append(found, err.Error())
		}
		if !strings.Contains(strings.Join(found, "\n"), broken.fault) {
			t.Errorf("%s with %q: found %q, want %q", broken.file, broken.to, found, broken.fault)
		}
	}
}

func TestChartRefusesBadValues(t *testing.T) {
	for values, want := range map[string]string{
		"replica: 3":                                "replica",
		"replicas: -1":                              "replicas",
		"replicas: three":                           "replicas",
		"drainTimeout: 50":                          "drainTimeout",
		"drainTimeout: 1.5s":                        "drainTimeout",
		"drainTimeout: 50 s":                        "drainTimeout",
		"image: {repository: ''}":                   "repository",
		"image: {pullPolicy: Sometimes}":            "pullPolicy",
		"redis: {url: 'redis://:hunter2@r:1'}":      "url",
		"redis: {url: 'http://r:1'}":                "url",
		"redis: {signed: true}":                     "secret",
		"config: {redis: {url: 'redis://r'}}":       "redis",
		"config: {admin: {listen: ':1'}}":           "admin",
		"config: {worker: {drain_timeout: 1s}}":     "worker",
		"config: {include: [a.yaml]}":               "include",
		"secrets: [lockstep]":                       "secrets",
		"secrets: [a/b]":                            "secrets",
		"podDisruptionBudget: {maxUnavailable: 0}":  "maxUnavailable",
		"networkPolicy: {ingress: [{}]}":            "ingress",
		"env: [{name: LOCKSTEP_REDIS__URL}]":        "env",
		"serviceMonitor: {enabled: true, every: 1}": "every",
	} {
		if _, err := template(t, chart, values); err == nil || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error of the schema that names %s", values, err, want)
		}
	}
}

// Helm merges the maps of an installation into those of the chart, so a job of the chart would be a
// job of each installation.
func TestChartAddsNoJobToThoseOfItsUser(t *testing.T) {
	for values, want := range map[string][]string{
		"":                             nil,
		"replicas: 2":                  nil,
		"config: {jobs: {}}":           nil,
		"config: {limits: {}}":         nil,
		"config: {jobs: " + mine + "}": {"mine"},
		example(t):                     {"warm-cache"},
	} {
		printed, err := template(t, chart, values)
		must(t, err)
		o, err := decode(printed)
		must(t, err)
		var config struct {
			Jobs map[string]any `json:"jobs"`
		}
		must(t, yaml.Unmarshal([]byte(o.config.Data["lockstep.yaml"]), &config))
		if got := slices.Sorted(maps.Keys(config.Jobs)); !slices.Equal(got, want) {
			t.Errorf("%q: the jobs are %q, want %q", values, got, want)
		}
	}
}

// mine are the jobs of an installation.
const mine = "{mine: {every: 1h, http: {url: http://x/}}}"

// TestChartConfigSuitsTheWorker gives the worker the arguments, the environment and the config of
// the Pod.
func TestChartConfigSuitsTheWorker(t *testing.T) {
	folder := t.TempDir()
	tool := filepath.Join(folder, "tool")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", tool, "./cmd/lockstep")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the tool: %v\n%s", err, out)
	}
	rendered := func(values string) *objects {
		printed, err := template(t, chart, values)
		must(t, err)
		o, err := decode(printed)
		must(t, err)
		return o
	}
	check := func(o *objects, change func(config string, env []string) (string, []string)) (string, error) {
		config := filepath.Join(t.TempDir(), "lockstep.yaml")
		text, env := o.config.Data["lockstep.yaml"], []string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder}
		worker := o.deployment.Spec.Template.Spec.Containers[0]
		for _, variable := range worker.Env {
			env = append(env, variable.Name+"="+variable.Value)
		}
		// Pods have addresses that others can reach. The chart leaves the sign-in to its user.
		// Until then, check warns that only probes and metrics are served there.
		env = append(env, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:9620")
		text, env = change(text, env)
		must(t, os.WriteFile(config, []byte(text), 0o600))
		run := exec.CommandContext(t.Context(), tool, "check", "--strict", "--config", config)
		run.Env = env
		out, err := run.CombinedOutput()
		return string(out), err
	}
	for what, values := range map[string]string{"the defaults": "", "the example": example(t), "another job": "config: {jobs: " + mine + "}"} {
		if out, err := check(rendered(values), func(text string, env []string) (string, []string) { return text, env }); err != nil {
			t.Errorf("check --strict with %s: %v\n%s", what, err, out)
		}
	}
	o := rendered("config: {jobs: " + mine + "}")
	if out, err := check(o, func(text string, env []string) (string, []string) {
		return text, append(env, "LOCKSTEP_ADMIN__LISTEM=x")
	}); err == nil {
		t.Errorf("an unknown setting is not found: %s", out)
	}
	if out, err := check(o, func(text string, env []string) (string, []string) {
		return strings.Replace(text, "every:", "evry:", 1), env
	}); err == nil {
		t.Errorf("a mistake in the config is not found: %s", out)
	}
	// The flags come from a real command line, which fails before it connects.
	args := slices.Concat(o.deployment.Spec.Template.Spec.Containers[0].Args, []string{"--help"})
	if out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput(); err != nil {
		t.Errorf("lockstep %q: %v\n%s", args, err, out)
	}
}

// example returns the values that a comment of values.yaml shows.
func example(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	must(t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line, shown := strings.CutPrefix(line, "#   "); shown {
			lines = append(lines, line)
		}
	}
	if len(lines) < 2 || lines[0] != "config:\n" {
		t.Errorf("the example of values.yaml is %q", lines)
	}
	return strings.Join(lines, "")
}

// The rules of the chart are a copy, because a chart can read only its own files.
func TestChartHasTheRulesOfPrometheus(t *testing.T) {
	chartRules, err := os.ReadFile(filepath.Join(chart, "rules.yaml"))
	must(t, err)
	var decoded rules
	must(t, yaml.UnmarshalStrict(chartRules, &decoded))
	if len(decoded.Groups) == 0 {
		t.Error("the chart has no rules")
	}
	err = filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(path)) || strings.HasPrefix(path, filepath.Join("..", "helm")) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var file map[string]json.RawMessage
		if yaml.Unmarshal(text, &file) != nil || file["groups"] == nil || file["tests"] != nil {
			return nil // not a rules file
		}
		if !bytes.Equal(text, chartRules) {
			t.Errorf("%s differs from the chart's copy: cp %s lockstep/rules.yaml", path, path)
		}
		return nil
	})
	must(t, err)
}
