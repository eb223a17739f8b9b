// Package top is the overview of a fleet in a terminal: workers, holds, waits, and how the last
// runs ended. [Run] shows it until the user leaves; [Tables] returns the same data once, as text.
//
// # How it is made
//
// The program is a value, the [model], that only [model.Update] changes. A message is a key, a new
// size of the terminal, a tick of the clock, or the result of something that ran in the
// background: a read, or an act. A screen ([model.View]) is a function of the model. So a test
// sends messages and compares screens, and needs neither a terminal nor time. Package bubbletea
// owns the terminal: it decodes keys, draws the differences between two screens, and restores the
// terminal when the program ends, also after a panic or a signal.
//
//	keys.go      what each key does; the help is made from the same table
//	section.go   a table that sorts, filters, scrolls and fits into a width
//	sections.go  the tables of the overview, with their columns
//	run.go       the screen of one run
//	output.go    its output, also while it is printed
//	dialog.go    an act: its question, its reason, its result
//	text.go      texts of others, cut by the cells that they take
//
// # Reads
//
// There is at most one read at a time, of what the screen shows. The next read begins one interval
// after the last one began, and later if the last one was slow: a read takes at most a fifth of the
// time, as with the page that workers serve. If a read fails, the screen keeps the last data,
// says how old it is and why, and the next read tries again.
//
// The screen of a run that is in progress also follows its output, as lockstep run output -f does:
// about once a second, one call at a time, and the next one rests after a slow one as reads do. As
// long as no such screen is shown, no worker passes anything on. The screen keeps the last 256 KiB.
//
// Sorting and filtering look at all data, once for each read and each change of the filter. Drawing
// looks only at the rows that fit on the screen.
//
// # Acts
//
// An act is what a command of the same name does: [Fleet.Prepare] reads the current state and
// returns a description of what would happen, which the user confirms. It asks where the command
// asks, and needs a reason where the command does.
//
// # Texts of others
//
// Names, errors, arguments and outputs come from anyone who may enqueue a run. Everything that is
// not printable becomes a space before it is drawn, so no escape sequence reaches the terminal, and
// no mark changes the direction of the text around it.
package top
