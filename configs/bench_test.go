package configs

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// manyJobs returns a file like those that programs generate.
func manyJobs(n int) string {
	var b strings.Builder
	b.WriteString("defaults: {timezone: Europe/Berlin, retry: {max: 2}}\njobs:\n")
	for i := range n {
		fmt.Fprintf(&b, "  job-%d:\n    description: Job number %d\n    schedule: \"%d %d * * *\"\n"+
			"    command: [echo, \"${GREETING:-hello}\", \"%d\"]\n    timeout: 10m\n    lock: {exclusive: [\"host:%d\"]}\n",
			i, i, i%60, 3+i%20, i, i%100)
	}
	return b.String()
}

// BenchmarkLoad10000Jobs shows the cost of one job: 100,000 must start within three seconds.
func BenchmarkLoad10000Jobs(b *testing.B) {
	const n = 10_000
	path := filepath.Join(writeFiles(b, map[string]string{"lockstep.yaml": manyJobs(n)}), "lockstep.yaml")
	b.ReportAllocs()
	for b.Loop() {
		c, err := Load(Options{Paths: []string{path}, Environ: []string{}})
		if err != nil {
			b.Fatal(err)
		}
		if len(c.Jobs) != n || len(c.Warnings.List) > 0 {
			b.Fatalf("got %d jobs, %s", len(c.Jobs), c.Warnings.Summary())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/job")
}

// many writes a thousand jobs into each of several files, as a program would, and returns their
// folder.
func many(t testing.TB, files int) string {
	const jobs = 1000
	texts := make(map[string]string, files)
	for i := range files {
		texts[fmt.Sprintf("jobs-%03d.yaml", i)] = strings.ReplaceAll(manyJobs(jobs), "  job-", fmt.Sprintf("  job-%d-", i))
	}
	return writeFiles(t, texts)
}

// BenchmarkLoad100000Jobs is the number to watch: the budget of a start is three seconds.
func BenchmarkLoad100000Jobs(b *testing.B) {
	dir := many(b, 100)
	for b.Loop() {
		c, err := Load(Options{Paths: []string{dir}, Environ: []string{}})
		if err != nil {
			b.Fatal(err)
		}
		if len(c.Jobs) != 100_000 || len(c.Warnings.List) > 0 {
			b.Fatalf("got %d jobs, %s", len(c.Jobs), c.Warnings.Summary())
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/load")
}

// The budget is three seconds for five times as many jobs on an idle machine. This machine also
// runs other tests, perhaps under the race detector. The test detects work that grows faster than
// the number of jobs.
func TestVeryManyJobsLoad(t *testing.T) {
	t.Parallel()
	load := func(files int) time.Duration {
		dir := many(t, files)
		began := time.Now()
		c, err := Load(Options{Paths: []string{dir}, Environ: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Jobs) != 1000*files {
			t.Errorf("got %d jobs of %d files", len(c.Jobs), files)
		}
		return time.Since(began)
	}
	few, all := load(2), load(20)
	t.Logf("20,000 jobs took %s, a tenth of them %s", all, few)
	if all > time.Minute && all > 40*few {
		t.Errorf("20,000 jobs took %s, a tenth of them %s", all, few)
	}
}

// A file full of secrets causes as many warnings. Each warning searches only the secrets of its own
// line.
func TestVeryManySecretsAreHidden(t *testing.T) {
	t.Parallel()
	load := func(n int) time.Duration {
		var b strings.Builder
		b.WriteString("jobs:\n")
		for i := range n {
			fmt.Fprintf(&b, "  job-%d: {command: [a, --password=SECRET], env: {API_TOKEN: SECRET}}\n", i)
		}
		path := filepath.Join(writeFiles(t, map[string]string{"lockstep.yaml": b.String()}), "lockstep.yaml")
		began := time.Now()
		c, err := Load(Options{Paths: []string{path}, Environ: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if len(c.Warnings.List) != 2*n {
			t.Errorf("%d warnings, want %d", len(c.Warnings.List), 2*n)
		}
		for _, p := range c.Warnings.List {
			if strings.Contains(p.Excerpt, "SECRET") {
				t.Fatalf("a secret was revealed: %s", p)
			}
		}
		return took
	}
	few, all := load(1_000), load(10_000)
	t.Logf("10,000 secret pairs took %s, a tenth of them %s", all, few)
	// It took minutes when each secret was searched in each line.
	if all > time.Minute && all > 40*few {
		t.Errorf("10,000 secret pairs took %s, a tenth of them %s", all, few)
	}
}

// BenchmarkLoad10000WrongJobs shows that positions are found fast enough even if every job needs
// one.
func BenchmarkLoad10000WrongJobs(b *testing.B) {
	const n = 10_000
	text := strings.ReplaceAll(manyJobs(n), "timeout: 10m", "timeout: 10")
	path := filepath.Join(writeFiles(b, map[string]string{"lockstep.yaml": text}), "lockstep.yaml")
	for b.Loop() {
		_, err := Load(Options{Paths: []string{path}, Environ: []string{}})
		if found, ok := errors.AsType[Problems](err); !ok || found.Errors() != n {
			b.Fatal(err)
		}
	}
}
