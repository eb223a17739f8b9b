//go:build unix

package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/jobs"
)

const (
	argsVariable       = "LOCKSTEP_ARGS"
	argsVariableOfFile = "LOCKSTEP_ARGS_FILE"

	// entryMost is the limit in bytes of one environment entry on Linux, including its name and the
	// terminating zero byte (MAX_ARG_STRLEN with pages of 4 KiB).
	entryMost = 128 << 10

	// argsPattern matches the names of files of args; the star is a random number. A file younger
	// than young may not have its owner's lock yet, so other processes leave it alone.
	argsPattern = "lockstep-args-*.json"
	young       = time.Minute
)

// An argsFile is a file with the args of one attempt. The process that made it keeps it locked
// while the command may read it, so the owner of an unlocked file has died. The guard of the
// command removes the file in that case. If the guard died too, a later worker on this host does:
// see [RemoveLeftArgs].
type argsFile struct{ *os.File }

// remove removes the file. The guard may have done so.
func (f *argsFile) remove() {
	if f != nil {
		_ = os.Remove(f.Name())
		_ = f.Close() // its content was written before the command began
	}
}

func (f *argsFile) name() string {
	if f == nil {
		return ""
	}
	return f.Name()
}

// argsEntry returns the environment entry that passes the args to a command. It is LOCKSTEP_ARGS,
// or LOCKSTEP_ARGS_FILE with the path of a new file for args that do not fit into one entry. The
// caller removes the file, which may be nil.
func argsEntry(attempt *jobs.Attempt) (entry string, file *argsFile, err error) {
	args := "{}"
	if len(attempt.Args) > 0 {
		args = string(attempt.Args)
	}
	if entry = argsVariable + "=" + args; len(entry) < entryMost {
		return entry, nil, nil
	}
	fail := func(err error) (string, *argsFile, error) {
		return "", nil, fmt.Errorf("write the args (%d bytes) to a file in %s (TMPDIR): %w", len(args), os.TempDir(), err)
	}
	// Only its owner can read the file, because args may contain secrets.
	f, err := os.CreateTemp("", argsPattern)
	if err != nil {
		return fail(err)
	}
	file = &argsFile{f}
	_ = lockFile(f) // on a file system without locks, no other process gets this one either
	if _, err = f.WriteString(args); err != nil {
		file.remove()
		return fail(err)
	}
	return argsVariableOfFile + "=" + f.Name(), file, nil
}

// lockFile locks an open file until it is closed, at the latest by the end of this process. It does
// not wait.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// RemoveLeftArgs removes files with args that workers of this user left on this host because both
// the worker and the guard of the command were killed. It returns how many. Call it when a worker
// starts, and again at next, if that is not zero: some files that may have been left are too young
// to tell.
func RemoveLeftArgs() (removed int, next time.Time, err error) {
	paths, err := filepath.Glob(filepath.Join(os.TempDir(), argsPattern))
	if err != nil {
		return 0, next, err
	}
	var errs []error
	for _, path := range paths {
		done, later, err := removeLeft(path)
		if done {
			removed++
		}
		if later.After(next) {
			next = later
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove a file of args that a worker has left: %w", err))
		}
	}
	return removed, next, errors.Join(errs...)
}

// removeLeft removes a file that belongs to this user, is not young, and is not locked. Other users
// may write to its folder. For a young file, later is when it is old enough.
func removeLeft(path string) (removed bool, later time.Time, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ELOOP) {
		return false, later, nil // it has just been removed, or it is not ours
	}
	if err != nil {
		return false, later, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, later, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || int(stat.Uid) != os.Getuid() {
		return false, later, nil
	}
	if now := time.Now(); now.Sub(info.ModTime()) < young {
		// at most a minute from now, even if the clock was set back since
		return false, now.Add(min(young, young-now.Sub(info.ModTime()))), nil
	}
	if err := lockFile(f); errors.Is(err, unix.EWOULDBLOCK) {
		return false, later, nil
	} else if err != nil {
		return false, later, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, later, err
	}
	return true, later, nil
}
