package configs

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// lintRights warns of config files that other users of this host can read or write but should not.
// It reports warnings instead of errors, because the mode of a file does not show which users can
// reach it: a container often has only one user, and Kubernetes mounts secrets as 0644 by default.
func (l *loader) lintRights(c *Config) {
	for _, s := range l.sources {
		if info, err := os.Stat(s.path); err == nil {
			l.fileRights(s.path, configRights(info.Mode()))
		}
	}
	known := make(map[string]bool)
	look := func(path, what string) {
		info, err := os.Stat(path) // follows links, which Kubernetes uses
		if err != nil || known[path] {
			return
		}
		known[path] = true
		l.fileRights(path, secretRights(info, os.Geteuid(), what))
	}
	for _, file := range c.secretFiles() {
		look(file.path, file.key)
	}
	for _, path := range l.secrets.paths(true) {
		look(path, "${file:"+path+"}")
	}
}

// fileRights adds a warning about a file, unless wrong is nil.
func (l *loader) fileRights(path string, wrong *fault) {
	if wrong != nil {
		l.add(Problem{Origin: Origin{File: path}, Severity: SeverityWarning, Code: CodeRights, Message: wrong.reason, Hint: wrong.hint}, "")
	}
}

// secretFile is a file for a secret, named by a setting.
type secretFile struct{ key, path string }

// secretFiles returns the files for secrets that settings name, such as password_file. A
// certificate is not a secret.
func (c *Config) secretFiles() (files []secretFile) {
	for _, setting := range settingList() {
		name := setting.path[len(setting.path)-1]
		if !strings.HasSuffix(name, "_file") || name == "ca_file" || name == "cert_file" {
			continue
		}
		switch paths := setting.of(c.Settings).Interface().(type) {
		case string:
			files = append(files, secretFile{setting.key, paths})
		case []string:
			for _, path := range paths {
				files = append(files, secretFile{setting.key, path})
			}
		}
	}
	return files
}

// configRights describes the fault in the mode of a config file, or returns nil. A user who can
// write the file can run any command.
func configRights(mode fs.FileMode) *fault {
	if !mode.IsRegular() || mode&0o002 == 0 {
		return nil
	}
	return &fault{reason: fmt.Sprintf("every user of this host can write this config (mode %04o), and thereby make workers run any command", mode.Perm()),
		hint: "chmod o-w"}
}

// secretRights describes the fault in the mode of a file with a secret, or returns nil. user is the
// user ID of this process, and what names the secret.
func secretRights(info fs.FileInfo, user int, what string) *fault {
	mode := info.Mode()
	f := &fault{hint: "chmod 600; for a secret of Kubernetes: defaultMode: 0400"}
	switch {
	case !mode.IsRegular():
		return nil
	case mode&0o006 != 0:
		f.reason = fmt.Sprintf("every user of this host can read or write this secret of %s (mode %04o)", what, mode.Perm())
	case mode&0o060 != 0 && !readsByGroup(info, user):
		f.reason = fmt.Sprintf("the group of this secret of %s can read or write it (mode %04o)", what, mode.Perm())
	default:
		return nil
	}
	return f
}

// readsByGroup reports whether a user may need the permissions of the group to read a file, because
// the file has another owner. That is the case in Kubernetes with fsGroup, where the mode cannot be
// stricter.
func readsByGroup(info fs.FileInfo, user int) bool {
	owner, known := ownerOf(info)
	return known && user != 0 && owner != user && info.Mode()&0o020 == 0
}
