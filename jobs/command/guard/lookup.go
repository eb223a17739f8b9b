//go:build unix

package guard

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// With the texts of os/exec.
var (
	errNotFound = errors.New("executable file not found in $PATH")
	errRelative = errors.New("cannot run executable found relative to current directory")
)

// lookUp returns the path of a program with this name. It does what os/exec.LookPath does, which
// the doc of the package does not let a guard use. It looks where the command will look up others:
// in the PATH of its environment.
func lookUp(name string, env []string) (file string, err error) {
	switch name {
	case "", ".", "..":
		return "", errNotFound
	}
	for i := range len(name) {
		if name[i] == '/' {
			return name, checkExecutable(name)
		}
	}
	folders := pathOf(env)
	for start, i := 0, 0; i <= len(folders) && folders != ""; i++ {
		if i < len(folders) && folders[i] != os.PathListSeparator {
			continue
		}
		folder := folders[start:i]
		start = i + 1
		if folder == "" {
			folder = "."
		}
		file := path.Join(folder, name)
		if checkExecutable(file) != nil {
			continue
		}
		if !path.IsAbs(file) {
			return file, errRelative
		}
		return file, nil
	}
	return "", errNotFound
}

// pathOf returns the PATH of an environment, or that of this process if there is none.
func pathOf(env []string) string {
	const entry = "PATH="
	folders := os.Getenv("PATH")
	for _, e := range env {
		if len(e) >= len(entry) && e[:len(entry)] == entry {
			folders = e[len(entry):]
		}
	}
	return folders
}

// checkExecutable returns an error unless this process can execute the file.
func checkExecutable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return syscall.EISDIR
	}
	err = access(file)
	if !errors.Is(err, syscall.ENOSYS) && !errors.Is(err, syscall.EPERM) {
		return err
	}
	// The system cannot answer, or a container does not let it.
	if info.Mode()&0o111 == 0 {
		return fs.ErrPermission
	}
	return nil
}
