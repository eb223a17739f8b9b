package configs

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Inputs are everything that one [Load] looked at: the files that it read with their contents,
// those that it could not read, and the folders and patterns that it listed. They show whether
// another Load would see a difference. A nil *Inputs records nothing.
type Inputs struct {
	files   []fileInput
	folders []folderInput
}

// fileInput is a file at the time it was read. A file that could not be read has no sum.
type fileInput struct {
	path string
	// Taken before the read, so that a change during the read is noticed.
	id   fileID
	sum  [sha256.Size]byte
	read bool
}

// fileID is a cheap check that a file is unchanged. If it differs, the contents are compared.
type fileID struct {
	size     int64
	modified time.Time
	info     os.FileInfo
}

func identify(path string) fileID {
	info, err := os.Stat(path)
	if err != nil {
		return fileID{}
	}
	return fileID{info.Size(), info.ModTime(), info}
}

func (id fileID) same(other fileID) bool {
	return id.info != nil && other.info != nil && id.size == other.size && id.modified.Equal(other.modified) && os.SameFile(id.info, other.info)
}

// folderInput is a folder, or a pattern, with the files that it listed.
type folderInput struct {
	path  string
	files []string
	list  func() ([]string, error)
}

func (i *Inputs) file(f fileInput) {
	if i != nil {
		i.files = append(i.files, f)
	}
}

func (i *Inputs) missing(path string) {
	if i != nil {
		i.files = append(i.files, fileInput{path: path})
	}
}

func (i *Inputs) folder(path string, files []string, list func() ([]string, error)) {
	if i != nil {
		i.folders = append(i.folders, folderInput{path, slices.Clone(files), list})
	}
}

// changes returns what another Load would see differently, a line each, and whether a file has
// disappeared. For a file that was touched but has the same contents, it stores the new fileID.
func (i *Inputs) changes() (differences string, gone bool) {
	var b strings.Builder
	for n := range i.files {
		f := &i.files[n]
		id := identify(f.path)
		if f.read && f.id.same(id) {
			continue
		}
		data, err := readLimited(f.path)
		sum := sha256.Sum256(data)
		switch {
		case err != nil && f.read:
			fmt.Fprintf(&b, "%q has disappeared\n", f.path)
			gone = true
		case err != nil:
		case !f.read || sum != f.sum:
			fmt.Fprintf(&b, "%q contains %x\n", f.path, sum)
		default:
			f.id = id
		}
	}
	for _, f := range i.folders {
		if files, _ := f.list(); !slices.Equal(files, f.files) {
			// a folder that cannot be listed has no files
			fmt.Fprintf(&b, "%q lists %q\n", f.path, files)
			gone = gone || len(files) < len(f.files)
		}
	}
	return b.String(), gone
}

// watched returns the folders in which an event may change the inputs: those of the files and
// patterns, and those of every symbolic link on the way to them. Kubernetes changes a mounted
// config map through such a link.
func (i *Inputs) watched() map[string]bool {
	folders := make(map[string]bool)
	for _, f := range i.files {
		links(f.path, linkLimit, folders)
	}
	for _, f := range i.folders {
		path := f.path
		// For a pattern, watch the folder that it searches, or the part of the path before the
		// pattern.
		for strings.ContainsAny(path, "*?[") {
			path = filepath.Dir(path)
		}
		links(filepath.Join(path, "x"), linkLimit, folders)
		for _, file := range f.files {
			links(file, linkLimit, folders)
		}
	}
	return folders
}

// linkLimit limits how many links are followed, because links can form a cycle.
const linkLimit = 40

// links adds the folder of a path, and of each symbolic link on the way to it.
func links(path string, limit int, folders map[string]bool) {
	path, err := filepath.Abs(path)
	if err != nil || limit == 0 {
		return
	}
	folders[filepath.Dir(path)] = true
	for at := path; at != filepath.Dir(at); at = filepath.Dir(at) {
		target, err := os.Readlink(at)
		if err != nil {
			continue // not a link
		}
		folders[filepath.Dir(at)] = true
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(at), target)
		}
		rest := strings.TrimPrefix(path, at)
		links(filepath.Join(target, rest), limit-1, folders)
		return
	}
}

const (
	// Between the last of several events and a look at the files, as an editor's save causes
	// several, and between two looks that must see the same.
	settleTime = 125 * time.Millisecond
	// While events continue, looks differ or a file is missing.
	settleMost = 2 * time.Second
	// Even without events, because some file systems send none.
	lookEvery = 30 * time.Second
	// The same if the system cannot report changes at all.
	lookBlind = 2 * time.Second
)

// Watch calls changed whenever the contents of the files differ from those that were loaded, until
// ctx ends. inputs returns the Inputs of the last [Load]. changed loads again with new Inputs, and
// is never called concurrently. Watch calls deaf with the reason if the system cannot report
// changes, and then checks the files every two seconds.
//
// Only the contents count, however they changed: a file may be written in place, be replaced,
// disappear for a moment, or be behind symbolic links that change. Because half of a file may be a
// valid config with fewer jobs, Watch calls changed once two looks, an eighth of a second apart,
// have seen the same contents, or after two seconds in which they kept changing.
func Watch(ctx context.Context, inputs func() *Inputs, changed func(context.Context), deaf func(error)) {
	var events <-chan fsnotify.Event
	var overflows <-chan error
	every := lookEvery
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, overflows = watcher.Events, watcher.Errors
	} else {
		deaf(err)
		every = lookBlind
	}
	watching := make(map[string]bool)
	follow := func() {
		if watcher == nil {
			return
		}
		wanted := inputs().watched()
		for folder := range watching {
			if !wanted[folder] {
				_ = watcher.Remove(folder) // it may have disappeared by itself
				delete(watching, folder)
			}
		}
		for folder := range wanted {
			// Folders that are already watched are added again, because a replaced folder has the
			// same name. For a missing folder, a parent is watched if it matters, and the files are
			// checked every half minute anyway.
			switch err := watcher.Add(folder); {
			case err == nil:
				watching[folder] = true
			case !os.IsNotExist(err) && every != lookBlind:
				deaf(err)
				every = lookBlind
			}
		}
	}
	// Detect changes since the inputs were recorded immediately.
	timer := time.NewTimer(0)
	defer timer.Stop()
	var since time.Time // of the first event or difference that was not yet handled
	var seen string     // the differences at the last look
	follow()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-overflows:
			// events were lost, so anything may have changed
			_ = err // the only remedy is to check the files
			since = time.Time{}
			timer.Reset(settleTime)
			continue
		case <-events:
			if since.IsZero() {
				since = time.Now()
			}
			timer.Reset(min(settleTime, max(0, time.Until(since.Add(settleMost)))))
			continue
		case <-timer.C:
		}
		differences, gone := inputs().changes()
		if differences != "" && since.IsZero() {
			since = time.Now()
		}
		// A file that has disappeared may come back, and one that still changes may be half
		// written.
		settled := differences == seen && !gone
		seen = differences
		if differences != "" && !settled && time.Since(since) < settleMost {
			timer.Reset(settleTime)
			continue
		}
		since, seen = time.Time{}, ""
		if differences != "" {
			changed(ctx)
		}
		follow()
		timer.Reset(every)
	}
}
