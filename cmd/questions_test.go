package cmd

import (
	"fmt"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/scheduler/admin"
)

// tags are the tags of an HTML page.
var tags = regexp.MustCompile("<[^>]*>")

// The questions that bring a person to lockstep. One command and one page answer each of them; the
// fleet is in a state in which each has an answer.
func TestOneCommandAndOnePageAnswerEachQuestion(t *testing.T) {
	t.Parallel()
	slow := t.TempDir() + "/slow" // while it exists, usual runs are slow
	f, _ := newPack(t, strings.ReplaceAll(`
worker: {queues: {default: 3, reports: 1}}
jobs:
  settle: {command: [sleep, "600"], lock: {exclusive: ["bill:1"]}}
  usual: {command: [sh, -c, '[ ! -e SLOW ] || exec sleep 600']}
  fails: {command: [sh, -c, 'echo no space left; exit 3'], retry: {max: 0}}
  beat: {every: 1s, command: [sleep, "600"]}
  silent: {schedule: "0 0 1 1 *", command: ["true"], max_silence: 1s}
`, "SLOW", slow), long)
	f.startAll(1)
	config := writeFile(t, "other.yaml", `jobs: {other: {every: 30m, command: ["true"]}}`)
	other := launch(t, append(f.env, "LOCKSTEP_CONFIG="+config), "start")
	site := "http://" + pageOf(t, f.workers[0])
	pageOf(t, other) // it is ready

	settled, waits := f.enqueue("settle", "a"), "settle#b"
	f.await(settled, "running")
	f.enqueue("settle", "b")
	f.await(waits, "waiting")
	for i := range 6 {
		f.await(f.enqueue("usual", fmt.Sprint(i)), "succeeded")
	}
	write(t, slow, "")
	unusual := f.enqueue("usual", "slow")
	f.await(unusual, "running")
	f.await(f.enqueue("fails", "a"), "failed")
	for range 2 {
		if stdout, stderr, code := runTool(t, f.env, "lock", "exec", "--exclusive", "ledger:7", "--", "true"); code != 0 {
			t.Fatal(stdout, stderr)
		}
	}
	if _, stderr, code := runTool(t, f.env, "queue", "pause", "reports", "--reason", "month end"); code != 0 {
		t.Fatal(stderr)
	}
	lock := ask[admin.Lock](t, f.env, "lock", "show", "bill:1")
	holder, token := string(lock.Holders[0].Worker), lock.Holders[0].Token.String()
	var digests []string // of the configs
	for _, w := range ask[[]admin.Worker](t, f.env, "worker", "ls") {
		digests = append(digests, w.Config)
	}
	if len(digests) != 2 || digests[0] == digests[1] {
		t.Fatalf("the workers have the configs %q, want two different ones", digests)
	}

	for _, question := range []struct {
		ask     string
		command []string
		exit    int
		page    string
		want    []string // in both
	}{
		{ask: "What runs where, since when?", command: []string{"run", "ls", "--state", "running"}, page: "/runs?state=running",
			want: []string{"settle#a", holder, "ago"}},
		{ask: "Is that unusual?", command: []string{"run", "show", unusual}, page: "/runs/usual%23slow",
			want: []string{"unusually long: 95 % of the last 6 successful runs took at most"}},
		{ask: "What holds this lock?", command: []string{"lock", "show", "bill:1"}, page: "/locks/bill:1",
			want: []string{"settle#a", holder, token}},
		{ask: "What waits for it, and behind what?", command: []string{"lock", "waits"}, page: "/locks/bill:1",
			want: []string{"settle#b", "bill:1", "settle#a"}},
		{ask: "What held it at that time?", command: []string{"lock", "history", "ledger:7", "--since", "1h"}, page: "/locks/ledger:7",
			want: []string{"true", "released"}},
		{ask: "Why did a tick not run?", command: []string{"job", "explain", "beat"}, page: "/jobs/beat/explain",
			want: []string{"skipped", "overlap: skip"}},
		{ask: "Which job is late?", command: []string{"job", "ls", "--note", "late"}, page: "/jobs?note=late",
			want: []string{"silent", "late"}},
		{ask: "Which worker has another config?", command: []string{"worker", "ls", "-o", "wide"}, page: "/config",
			want: digests},
		{ask: "What was done since yesterday, and by which user?", command: []string{"audit", "--since", "24h"}, page: "/audit?since=24h",
			want: []string{"pause queue", "reports", "month end"}},
		{ask: "What failed in the last hour, by error?", command: []string{"run", "ls", "--since", "1h", "--state", "failed", "--group", "error"},
			page: "/runs?since=1h&state=failed&group=error", want: []string{"exit status 3", "fails#a"}},
		{ask: "What will run in the next hour?", command: []string{"job", "next", "--until", "1h"}, page: "/jobs/next?until=1h",
			want: []string{"beat"}},
		{ask: "What would happen if I released this lock?", command: []string{"lock", "release", "bill:1", "--token", token, "--reason", "stuck"}, exit: exitUsage,
			page: "/locks/bill:1/release?token=" + token, want: []string{holder, "1 request waits for bill:1; the next is settle#b"}},
	} {
		t.Run(question.ask, func(t *testing.T) {
			answered := func(text string) bool {
				for _, want := range question.want {
					if !strings.Contains(text, want) {
						return false
					}
				}
				return true
			}
			// Some answers need a moment: a tick that is skipped, a run that exceeds what is usual.
			eventually(t, time.Minute, fmt.Sprintf("lockstep %s prints %q", strings.Join(question.command, " "), question.want), func() bool {
				stdout, stderr, code := runTool(t, f.env, question.command...)
				return code == question.exit && answered(stdout+stderr)
			})
			eventually(t, time.Minute, fmt.Sprintf("%s shows %q", question.page, question.want), func() bool {
				status, page := fetch(t, site+question.page)
				return status == 200 && answered(html.UnescapeString(tags.ReplaceAllString(string(page), "")))
			})
		})
	}
}
