package command

import (
	"errors"
	"fmt"
	"os"

	"lockstep/jobs"
)

const (
	argsVariable = "LOCKSTEP_ARGS"
	argsFile     = "LOCKSTEP_ARGS_FILE"

	// entryMost is the limit in bytes of one environment entry on Linux, including its name and the
	// terminating zero byte (MAX_ARG_STRLEN with pages of 4 KiB).
	entryMost = 128 << 10
)

// argsEntry returns the environment entry that passes the args to a command. It is LOCKSTEP_ARGS,
// or LOCKSTEP_ARGS_FILE with the path of a new file for args that do not fit into one entry. file
// is that path, which the caller removes, or "".
func argsEntry(attempt *jobs.Attempt) (entry, file string, err error) {
	args := "{}"
	if len(attempt.Args) > 0 {
		args = string(attempt.Args)
	}
	if entry = argsVariable + "=" + args; len(entry) < entryMost {
		return entry, "", nil
	}
	fail := func(err error) (string, string, error) {
		return "", "", fmt.Errorf("write the args (%d bytes) to a file in %s (TMPDIR): %w", len(args), os.TempDir(), err)
	}
	// Only its owner can read the file, because args may contain secrets.
	f, err := os.CreateTemp("", "lockstep-args-*.json")
	if err != nil {
		return fail(err)
	}
	_, err = f.WriteString(args)
	if err = errors.Join(err, f.Close()); err != nil {
		return fail(errors.Join(err, os.Remove(f.Name())))
	}
	return argsFile + "=" + f.Name(), f.Name(), nil
}
