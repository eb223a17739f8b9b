// Command lockstep runs the same cron schedule and the same task queue on many workers and makes
// each run happen once.
package main

import (
	"lockstep/cmd"
	"lockstep/jobs"
)

func main() { cmd.Main(jobs.NewRegistry()) }
