// Package bootclock reads the clock in which processes of one machine tell each other deadlines.
//
// On Linux, that clock is the time since the machine was booted, suspend included. All processes
// read the same time, and nothing sets it. Other systems have no such clock, so [Now] returns the
// wall clock there, and a step of the wall clock moves the deadlines.
//
// The package imports only syscall and time, because every import delays the start of a guard
// (lockstep/jobs/command/guard).
package bootclock
