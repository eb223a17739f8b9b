package command

import "os"

// Self returns the path for executing this program again, for Options.Guard. On Linux it refers to
// the running program itself, so an update that replaces the file cannot start a guard of another
// version.
func Self() (string, error) {
	if _, err := os.Stat(selfLink); err == nil {
		return selfLink, nil
	}
	return os.Executable() // without /proc
}

const selfLink = "/proc/self/exe"
