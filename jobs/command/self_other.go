//go:build unix && !linux

package command

import "os"

// Self returns the path for executing this program again, for Options.Guard.
func Self() (string, error) { return os.Executable() }

const selfLink = "" // no such link
