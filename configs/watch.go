package configs

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Inputs are what one [Load] looked at: the files it read with what stood in them, those it could not read, and the
// folders and patterns it listed. They tell whether another Load would see anything else. A nil *Inputs takes nothing in.
type Inputs struct {
	files   []fileInput
	folders []folderInput
}

// fileInput is a file as it was read. A file that could not be read has no sum.
type fileInput struct {
	path string
	id   fileID // before it was read, so that what changes meanwhile is seen
	sum  [sha256.Size]byte
	read bool
}

// fileID tells cheaply that a file is what it was, and not that it is another: then its text is compared.
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

// folderInput is a folder, or a pattern, with the files it stood for.
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

// changed tells whether another Load would see something else, and whether a file has gone that was there. A file that
// was touched, and is still the same, is remembered as it is now.
func (i *Inputs) changed() (changed, gone bool) {
	for n := range i.files {
		f := &i.files[n]
		id := identify(f.path)
		if f.read && f.id.same(id) {
			continue
		}
		data, err := readLimited(f.path)
		switch {
		case err != nil && f.read:
			changed, gone = true, true
		case err != nil:
		case !f.read || sha256.Sum256(data) != f.sum:
			changed = true
		default:
			f.id = id
		}
	}
	for _, f := range i.folders {
		if files, _ := f.list(); !slices.Equal(files, f.files) { // a folder that cannot be listed has no files
			changed = true
			gone = gone || len(files) < len(f.files)
		}
	}
	return changed, gone
}

// watched returns the folders in which something may happen that changes the inputs: those of the files and patterns,
// and of every symbolic link on the way to them. A mounted config map of Kubernetes changes by such a link.
func (i *Inputs) watched() map[string]bool {
	folders := make(map[string]bool)
	add := func(path string, limit int) {
		links(path, limit, folders)
	}
	for _, f := range i.files {
		add(f.path, linkLimit)
	}
	for _, f := range i.folders {
		path := f.path
		if strings.ContainsAny(path, "*?[") { // of a pattern, the folder it looks into, or what is plain of that
			for strings.ContainsAny(path, "*?[") {
				path = filepath.Dir(path)
			}
		}
		add(filepath.Join(path, "x"), linkLimit)
		for _, file := range f.files {
			add(file, linkLimit)
		}
	}
	return folders
}

// linkLimit bounds how many links are followed: two may lead to each other.
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
			continue // no link
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
	settleTime = 250 * time.Millisecond // after the last of many events: an editor's save is several
	settleMost = 2 * time.Second        // as long as events go on, or a file that was there is not
	lookEvery  = 30 * time.Second       // whether or not anything was heard: some file systems tell nothing
	lookBlind  = 2 * time.Second        // the same where the system cannot tell of changes at all
)

// Watch calls changed whenever the files have other contents than when they were loaded, until ctx ends. inputs returns
// those of the last [Load]; changed makes another one, with an Inputs of its own, and is never called twice at once. deaf
// is called with the reason when the system cannot tell of changes: then the files are looked at every two seconds.
//
// What counts is the contents, however they came to change: a file may be written in place, replaced by another, go away
// for a moment, or lie behind symbolic links that are moved.
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
				_ = watcher.Remove(folder) // it may have gone by itself
				delete(watching, folder)
			}
		}
		for folder := range wanted {
			// Again also for those that are watched: a folder that was replaced has the same name. A folder that does not
			// exist has one above it that is watched when it matters, and is looked at every half minute anyway.
			switch err := watcher.Add(folder); {
			case err == nil:
				watching[folder] = true
			case !os.IsNotExist(err) && every != lookBlind:
				deaf(err)
				every = lookBlind
			}
		}
	}
	timer := time.NewTimer(0) // what changed since the inputs were filled is seen at once
	defer timer.Stop()
	var since time.Time // of the first event that was not looked at yet
	follow()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-overflows: // events were lost, so nothing is known of what happened
			_ = err // there is nothing to do but look
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
		different, gone := inputs().changed()
		if different && gone && (since.IsZero() || time.Since(since) < settleMost) {
			if since.IsZero() {
				since = time.Now()
			}
			timer.Reset(settleTime) // it may be back in a moment
			continue
		}
		since = time.Time{}
		if different {
			changed(ctx)
		}
		follow()
		timer.Reset(every)
	}
}
