//go:build race

package cmd

// raceEnabled is true if the tests, and with them the processes that they start, run under the race
// detector.
const raceEnabled = true
