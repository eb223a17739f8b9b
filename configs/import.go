package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

// imported is a job that is being converted to a config file.
type imported struct {
	name    string
	remarks []string // comments above the job
	keys    []importedKey
}

// importedKey is one key of the job, with a trailing comment.
type importedKey struct {
	key    string
	value  any
	remark string
}

func (j *imported) set(key string, value any, remark string) {
	j.keys = append(j.keys, importedKey{key, value, remark})
}

func (j *imported) remark(format string, args ...any) {
	j.remarks = append(j.remarks, fmt.Sprintf(format, args...))
}

// importFile writes jobs as a config file.
func importFile(head []string, timezone string, list []*imported) []byte {
	var b bytes.Buffer
	for _, line := range head {
		b.WriteString(strings.TrimRight("# "+printable(line), " ") + "\n")
	}
	if timezone != "" {
		b.WriteString("\ndefaults:\n  timezone: " + timezone + "\n")
	}
	b.WriteString("\njobs:")
	if len(list) == 0 {
		b.WriteString(" {}")
	}
	b.WriteString("\n")
	taken := make(map[string]bool)
	for i, job := range list {
		if i > 0 {
			b.WriteString("\n")
		}
		for _, remark := range job.remarks {
			for line := range strings.Lines(remark) {
				b.WriteString("  # " + printable(strings.TrimSpace(line)) + "\n")
			}
		}
		fmt.Fprintf(&b, "  %s:\n", freeName(job.name, taken))
		for _, k := range job.keys {
			remark := ""
			if k.remark != "" {
				remark = " # " + printable(k.remark)
			}
			fmt.Fprintf(&b, "    %s: %s%s\n", k.key, flowYAML(k.value), remark)
		}
	}
	return b.Bytes()
}

// freeName turns any text into the name of a job that no other job has.
func freeName(text string, taken map[string]bool) string {
	base := likelyName(text)
	if len(base) > 50 {
		base = strings.Trim(base[:50], "-")
	}
	if jobs.ValidName(base) != nil {
		base = "job"
	}
	name := base
	for n := 2; taken[name]; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	taken[name] = true
	return name
}

// flowYAML writes a value on one line.
func flowYAML(value any) string {
	n := new(yaml.Node)
	flow(must(n, n.Encode(value)))
	return strings.TrimSpace(string(must(yaml.Dump(n, yaml.WithLineWidth(-1)))))
}

// flow sets the styles of a node and of those below it, so that all of them fit on one line.
func flow(n *yaml.Node) {
	n.Style |= yaml.FlowStyle
	if n.Kind == yaml.ScalarNode {
		n.Style &^= yaml.FlowStyle | yaml.LiteralStyle | yaml.FoldedStyle
		if n.Tag == "!!str" && (strings.ContainsAny(n.Value, "\n*#") || n.Style != 0) {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	for _, c := range n.Content {
		flow(c)
	}
}

// literal escapes ${ and $$ in another tool's text, so that they are not replaced.
func literal(s string) string {
	return strings.NewReplacer("$$", "$$$$", "${", "$${").Replace(s)
}

// ImportOptions have information that a crontab does not contain.
type ImportOptions struct {
	// Timezone is the time zone of the machine with the crontab. "" means UTC, with a remark.
	Timezone string

	// System means that the sixth field is a user, as in /etc/crontab.
	System bool
}

var (
	crontabVariable = pattern(`^\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$`)
	crontabLine     = pattern(`^\s*(@\w+|(?:\S+\s+){4}\S+)\s+(.*)$`)
)

// ImportCrontab writes a config file that is equivalent to a crontab, with remarks on the
// differences.
func ImportCrontab(text []byte, o ImportOptions) []byte {
	head := []string{
		"Imported from a crontab. Look it over, then: lockstep check",
		"",
		"Differences: a job runs once over all workers, not once on each machine; a tick that becomes due while the previous run",
		"is running is skipped (overlap); and a failed run is retried (retry).",
	}
	timezone := o.Timezone
	if timezone == "" {
		timezone = "UTC"
		head = append(head, "", "The times of a crontab follow the clock of its machine: set the time zone of that machine.")
	}
	var (
		list     []*imported
		comments []string // directly above a line
		env      = make(map[string]string)
		zone     string
		shell    = "sh"
	)
	for line := range strings.Lines(string(text)) {
		line = printable(strings.ToValidUTF8(strings.TrimRight(line, "\r\n"), "?"))
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "":
			comments = nil
			continue
		case strings.HasPrefix(trimmed, "#"):
			comments = append(comments, strings.TrimSpace(strings.TrimLeft(trimmed, "#")))
			continue
		}
		if m := crontabVariable().FindStringSubmatch(line); m != nil {
			name, value := m[1], strings.Trim(m[2], `"'`)
			switch name {
			case "SHELL":
				shell = value
			case "CRON_TZ", "TZ":
				zone = value
			case "MAILTO", "MAILFROM":
				if value != "" {
					head = append(head, "", name+"="+value+" has no equivalent: output stays with the run (lockstep run output), failures show in lockstep run ls.")
				}
			default:
				env[name] = value
			}
			comments = nil
			continue
		}
		list = append(list, importCrontabLine(line, comments, maps.Clone(env), zone, shell, o.System))
		comments = nil
	}
	kept := list[:0]
	for _, job := range list {
		if job.keys == nil { // only remarks
			head = append(head, append([]string{""}, job.remarks...)...)
			continue
		}
		kept = append(kept, job)
	}
	return importFile(head, timezone, kept)
}

func importCrontabLine(line string, comments []string, env map[string]string, zone, shell string, system bool) *imported {
	job := new(imported)
	m := crontabLine().FindStringSubmatch(line)
	if m == nil {
		job.remark("Not understood, and left out: %s", line)
		return job
	}
	schedule, command, user := strings.Join(strings.Fields(m[1]), " "), m[2], ""
	if system {
		user = strings.Fields(command + " -")[0]
		command = strings.TrimSpace(strings.TrimPrefix(command, user))
	}
	job.name = commandName(command)
	if schedule == "@reboot" {
		job.remark("@reboot has no equivalent, so this is left out (a job without a schedule runs when it is enqueued): %s", command)
		return job
	}
	if _, err := cronspec.Parse(schedule, time.UTC); err != nil {
		job.remark("Left out, as the schedule cannot be used: %v", err)
		job.remark("  %s", line)
		return job
	}
	if len(comments) > 0 {
		job.set("description", strings.Join(comments, " "), "")
	}
	job.set("schedule", schedule, "")
	if zone != "" {
		if _, err := cronspec.LoadZone(zone); err != nil {
			job.remark("CRON_TZ=%s: %v", zone, err)
		} else {
			job.set("timezone", zone, "")
		}
	}
	if user != "" {
		job.remark("It ran as the user %s; a command runs as the user of the worker.", user)
	}
	program, input := cutPercent(command)
	if input != "" {
		// Text after the first % of a crontab line is the command's input.
		program = "printf '%s' '" + strings.ReplaceAll(input, "'", `'\''`) + "' | { " + program + "; }"
	}
	if strings.Contains(program, "flock ") {
		job.remark("flock(1) locks on one machine; a job with a schedule holds a lock over all of them, so it may not be needed.")
	}
	job.set("command", []string{shell, "-c", literal(program)}, "")
	if len(env) > 0 {
		for name, value := range env {
			env[name] = literal(value)
		}
		job.set("env", env, "")
	}
	return job
}

// cutPercent splits a crontab line at its first unescaped %. The text after it is input, in which
// each further % is a newline. \% is a percent sign.
func cutPercent(s string) (command, input string) {
	var parts [2]strings.Builder
	at := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s) && s[i+1] == '%':
			parts[at].WriteByte('%')
			i++
		case s[i] == '%' && at == 0:
			at = 1
		case s[i] == '%':
			parts[at].WriteByte('\n')
		default:
			parts[at].WriteByte(s[i])
		}
	}
	if at == 1 {
		parts[1].WriteByte('\n')
	}
	return strings.TrimSpace(parts[0].String()), parts[1].String()
}

// wrappers are programs with names that do not describe what a command does.
var wrappers = []string{"sh", "bash", "flock", "nice", "ionice", "sudo", "env", "test", "[", "exec", "time", "timeout", "python",
	"python3", "php", "perl", "ruby", "node", "&&", "||", ";", "|"}

// commandName makes a name from the first descriptive word of a command.
func commandName(command string) string {
	folder := false
	for word := range strings.FieldsSeq(command) {
		base := filepath.Base(word)
		ext := filepath.Ext(base)
		switch {
		case folder:
			// the argument of cd
			folder = false
		case base == "cd":
			folder = true
		case strings.ContainsAny(word, "=$"), strings.HasPrefix(word, "-"), slices.Contains(wrappers, base),
			strings.Trim(base, "0123456789./") == "", ext == ".lock":
		case slices.Contains([]string{".sh", ".py", ".pl", ".rb", ".php", ".js"}, ext):
			return strings.TrimSuffix(base, ext)
		default:
			return base
		}
	}
	return "job"
}

// cronJob has the fields of a Kubernetes CronJob that matter for a job.
type cronJob struct {
	Kind     string    `yaml:"kind"`
	Items    []cronJob `yaml:"items"` // of a List
	Metadata struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"metadata"`
	Spec struct {
		Schedule                   string `yaml:"schedule"`
		TimeZone                   string `yaml:"timeZone"`
		Suspend                    bool   `yaml:"suspend"`
		ConcurrencyPolicy          string `yaml:"concurrencyPolicy"`
		StartingDeadlineSeconds    *int64 `yaml:"startingDeadlineSeconds"`
		SuccessfulJobsHistoryLimit *int   `yaml:"successfulJobsHistoryLimit"`
		FailedJobsHistoryLimit     *int   `yaml:"failedJobsHistoryLimit"`
		JobTemplate                struct {
			Spec struct {
				BackoffLimit          *int   `yaml:"backoffLimit"`
				ActiveDeadlineSeconds *int64 `yaml:"activeDeadlineSeconds"`
				Parallelism           *int   `yaml:"parallelism"`
				Completions           *int   `yaml:"completions"`
				Template              struct {
					Spec podSpec `yaml:"spec"`
				} `yaml:"template"`
			} `yaml:"spec"`
		} `yaml:"jobTemplate"`
	} `yaml:"spec"`
}

type podSpec struct {
	ServiceAccountName string         `yaml:"serviceAccountName"`
	NodeSelector       map[string]any `yaml:"nodeSelector"`
	Volumes            []any          `yaml:"volumes"`
	InitContainers     []podContainer `yaml:"initContainers"`
	Containers         []podContainer `yaml:"containers"`
}

type podContainer struct {
	Name       string         `yaml:"name"`
	Image      string         `yaml:"image"`
	Command    []string       `yaml:"command"`
	Args       []string       `yaml:"args"`
	WorkingDir string         `yaml:"workingDir"`
	Env        []podVariable  `yaml:"env"`
	EnvFrom    []any          `yaml:"envFrom"`
	Resources  map[string]any `yaml:"resources"`
}

type podVariable struct {
	Name      string         `yaml:"name"`
	Value     string         `yaml:"value"`
	ValueFrom map[string]any `yaml:"valueFrom"`
}

// ImportCronJobs writes a config file that is equivalent to the CronJobs among Kubernetes
// manifests, with remarks on the differences. An error names the manifest that cannot be read.
func ImportCronJobs(text []byte) ([]byte, error) {
	head := []string{
		"Imported from Kubernetes CronJobs. Look it over, then: lockstep check",
		"",
		"Differences: a command runs in the worker's container, with its image, its service account and its volumes; and",
		"a failed run is retried by the same rules, whatever the reason (retry).",
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var list []*imported
	others := make(map[string]int)
	for n := 1; ; n++ {
		var manifest cronJob
		var document yaml.Node
		if err := loader.Load(&document); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, fmt.Errorf("read manifest %d: %w", n, err)
		}
		if err := document.Decode(&manifest); err != nil {
			return nil, fmt.Errorf("read manifest %d: %w", n, err)
		}
		for _, one := range append([]cronJob{manifest}, manifest.Items...) {
			switch one.Kind {
			case "CronJob":
				list = append(list, importCronJob(&one))
			case "", "List", "CronJobList":
			default:
				others[one.Kind]++
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(others)) {
		head = append(head, "", fmt.Sprintf("Left out: %s of kind %s.", plural(others[kind], "manifest"), kind))
	}
	return importFile(head, "", list), nil
}

func importCronJob(c *cronJob) *imported {
	job := &imported{name: c.Metadata.Name}
	schedule, zone := c.Spec.Schedule, c.Spec.TimeZone
	if m := regexp.MustCompile(`^(?:CRON_)?TZ=(\S+)\s+(.*)$`).FindStringSubmatch(schedule); m != nil {
		zone, schedule = m[1], m[2]
	}
	pod := c.Spec.JobTemplate.Spec.Template.Spec
	var container podContainer
	if len(pod.Containers) > 0 {
		container = pod.Containers[0]
	}
	if c.Metadata.Namespace != "" {
		job.remark("It was in the namespace %s.", c.Metadata.Namespace)
	}
	job.remark("It ran the image %s: the worker's image must have everything that the command needs.", container.Image)
	if _, err := cronspec.Parse(schedule, time.UTC); err != nil {
		job.remark("It has no schedule here, so it runs when it is enqueued: %v", err)
	} else {
		job.set("schedule", schedule, "")
		if zone != "" {
			job.set("timezone", zone, "")
		}
	}
	job.importPolicies(c)

	words := append(slices.Clone(container.Command), container.Args...)
	remark := ""
	if len(container.Command) == 0 {
		remark = "the manifest has no command: write that of the image"
		words = append([]string{"ENTRYPOINT"}, words...) // fails visibly instead of doing nothing
	}
	values := make(map[string]string) // of variables that the manifest itself sets
	for _, v := range container.Env {
		if v.ValueFrom == nil {
			values[v.Name] = v.Value
		}
	}
	for i, word := range words {
		words[i] = kubernetesText(word, values)
	}
	if container.WorkingDir != "" {
		words = append([]string{"sh", "-c", `cd "$1" && shift && exec "$@"`, "sh", container.WorkingDir}, words...)
	}
	job.set("command", words, remark)
	env := make(map[string]string)
	for _, v := range container.Env {
		if v.ValueFrom == nil {
			env[v.Name] = kubernetesText(v.Value, values)
			continue
		}
		env[v.Name] = "${" + v.Name + "}"
		job.remark("%s came from a %s: give it to the worker, or write ${file:/path} of a mounted secret.", v.Name, strings.Join(slices.Sorted(maps.Keys(v.ValueFrom)), ", "))
	}
	if len(env) > 0 {
		job.set("env", env, "")
	}
	job.importRest(c, pod, container)
	return job
}

// importPolicies converts the policies that have an equivalent.
func (j *imported) importPolicies(c *cronJob) {
	policy := map[string]string{"": "allow", "Allow": "allow", "Forbid": "skip", "Replace": "replace"}[c.Spec.ConcurrencyPolicy]
	j.set("overlap", policy, "")
	seconds := func(n int64) string { return cronspec.FormatInterval(time.Duration(n) * time.Second) }
	if s := c.Spec.StartingDeadlineSeconds; s != nil {
		j.set("start_deadline", seconds(*s), "")
	}
	if c.Spec.Suspend {
		j.set("paused", true, "")
	}
	spec := c.Spec.JobTemplate.Spec
	if s := spec.ActiveDeadlineSeconds; s != nil {
		j.set("timeout", seconds(*s), "of each attempt; activeDeadlineSeconds limited all of them together")
	}
	retries := 6 // the default of Kubernetes
	if spec.BackoffLimit != nil {
		retries = *spec.BackoffLimit
	}
	j.set("retry", map[string]any{"max": retries, "initial": "10s", "max_delay": "6m"}, "as Kubernetes does by default")
}

// importRest adds remarks on keys without an equivalent.
func (j *imported) importRest(c *cronJob, pod podSpec, container podContainer) {
	spec := c.Spec.JobTemplate.Spec
	if len(pod.Containers) > 1 || len(pod.InitContainers) > 0 {
		var names []string
		for _, other := range append(slices.Clone(pod.InitContainers), pod.Containers[min(1, len(pod.Containers)):]...) {
			names = append(names, other.Name)
		}
		j.remark("Only one command is imported, without the containers %s.", strings.Join(names, ", "))
	}
	for _, n := range []struct {
		name  string
		value *int
	}{{"parallelism", spec.Parallelism}, {"completions", spec.Completions}} {
		if n.value != nil && *n.value > 1 {
			j.remark("%s %d has no equivalent: a run is one piece of work.", n.name, *n.value)
		}
	}
	var lost []string
	for name, there := range map[string]bool{
		"envFrom": len(container.EnvFrom) > 0, "resources": len(container.Resources) > 0, "volumes": len(pod.Volumes) > 0,
		"serviceAccountName " + strconv.Quote(pod.ServiceAccountName): pod.ServiceAccountName != "", "nodeSelector": len(pod.NodeSelector) > 0,
		"successfulJobsHistoryLimit and failedJobsHistoryLimit (see history)": c.Spec.SuccessfulJobsHistoryLimit != nil || c.Spec.FailedJobsHistoryLimit != nil,
	} {
		if there {
			lost = append(lost, name)
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		j.remark("No equivalent, or set on the worker: %s.", strings.Join(lost, ", "))
	}
}

var kubernetesReference = pattern(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// kubernetesText replaces $(VAR) by its value in the manifest, or by ${VAR} for the worker's
// environment. All other text remains unchanged.
func kubernetesText(s string, values map[string]string) string {
	return kubernetesReference().ReplaceAllStringFunc(literal(s), func(reference string) string {
		name := reference[2 : len(reference)-1]
		if value, ok := values[name]; ok {
			return literal(value)
		}
		return "${" + name + "}"
	})
}
