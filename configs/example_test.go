package configs_test

import (
	"fmt"

	"lockstep/configs"
	"lockstep/jobs"
)

func ExampleLoad() {
	c, err := configs.Load(configs.Options{
		Paths:   []string{"lockstep.example.yaml"},
		Environ: []string{"LOCKSTEP_WORKER__CONCURRENCY=4"},
	})
	if err != nil {
		fmt.Println(err) // every problem, with its position
		return
	}
	fmt.Println(c.Settings.Worker.Concurrency, "slots, from", c.Origins["worker.concurrency"])
	for _, job := range c.Jobs {
		fmt.Println(job.Name, job.Queue)
	}
	// Output:
	// 4 slots, from LOCKSTEP_WORKER__CONCURRENCY
	// daily-report default
	// nightly-backup default
	// settle-bills critical
	// warm-cache default
}

func ExampleProblems() {
	_, err := configs.Load(configs.Options{Paths: []string{"testdata/example.yaml"}, Environ: []string{}})
	fmt.Println(err)
	// Output:
	// testdata/example.yaml:3:5: error: unknown key "shedule" in job "invoice-run" [unknown-key]
	//     3 |     shedule: "0 2 * * *"
	//       |     ^^^^^^^ did you mean "schedule"?
	// testdata/example.yaml:5:14: error: bad duration "30" for timeout of job "invoice-run": it needs a unit [bad-duration]
	//     5 |     timeout: 30
	//       |              ^^ did you mean "30s"?
	// 2 errors in 1 file, 1 job
}

func ExampleExpand() {
	job := &jobs.Job{Name: "greet", Command: []string{"echo", "hello ${WHO:-world}", "costs $$5"}}
	expanded, _, err := configs.Expand(job, func(string) (string, bool) { return "", false })
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", expanded.Command)
	// Output:
	// ["echo" "hello world" "costs $5"]
}
