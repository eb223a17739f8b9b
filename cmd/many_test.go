package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// A hundred thousand jobs start, run, and cost almost nothing while none of them is due. The budget
// is three seconds and 2 % of a core. The bounds here are for machines that are busy with other
// work; the log has the measurements, of the tool without the race detector, which multiplies both.
func TestHundredThousandJobsStartAndIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds")
	}
	t.Parallel()
	const files, each = 100, 1000
	dir := t.TempDir()
	for f := range files {
		var b strings.Builder
		b.WriteString("jobs:\n")
		for i := range each {
			// Once a year: not due during this test.
			fmt.Fprintf(&b, "  job-%d-%d: {schedule: \"%d %d 1 1 *\", command: [echo, \"%d\"]}\n", f, i, i%60, f%24, i)
		}
		write(t, filepath.Join(dir, fmt.Sprintf("jobs-%02d.yaml", f)), b.String())
	}
	write(t, filepath.Join(dir, "beat.yaml"), "log: {format: json, level: error}\njobs:\n  beat: {every: 5s, command: [\"true\"]}\n")
	server := redistest.New(t, redistest.Options{})
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+dir)
	tool := plainPath
	began := time.Now()
	launchProgram(t, tool, env, "start", "--watch")
	var pid int
	eventually(t, 2*time.Minute, "the worker is up", func() bool {
		workers := ask[[]workerJSON](t, env, "worker", "ls")
		if len(workers) == 1 {
			pid = workers[0].PID
		}
		return pid != 0
	})
	t.Logf("there after %s", time.Since(began).Round(100*time.Millisecond))
	eventually(t, time.Minute, "a tick has run", func() bool {
		out, _, code := runTool(t, env, "job", "history", "beat", "-o", "json")
		return code == 0 && strings.Contains(out, `"succeeded"`)
	})

	before := cpuTime(t, pid)
	const idle = 10 * time.Second
	timer := time.NewTimer(idle)
	defer timer.Stop()
	<-timer.C
	used := cpuTime(t, pid) - before
	t.Logf("%.1f %% of a core while idle", 100*used.Seconds()/idle.Seconds())
	if used > idle/5 {
		t.Errorf("used %s of processor time in %s", used, idle)
	}
}

// cpuTime returns the CPU time that a process has used.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skipf("this system does not tell: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var ticks int
	for _, field := range fields[11:13] { // utime and stime, counted from after the name
		n, err := strconv.Atoi(field)
		must(t, err)
		ticks += n
	}
	const perSecond = 100 // USER_HZ, on every Linux
	return time.Duration(ticks) * time.Second / perSecond
}
