//go:build race

package cmd

// raceEnabled tells that the tests run under the race detector: the processes that they start then do, too.
const raceEnabled = true
