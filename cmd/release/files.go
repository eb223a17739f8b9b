package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra/doc"

	"lockstep/cmd"
)

// file is a file of an archive.
type file struct {
	path string // in the archive, with slashes
	mode int64
	text []byte
	// where a package installs it; "": archives alone have it
	installed string
}

// copies are the files of the checkout that a release has.
var copies = []struct{ from, to, installed string }{
	{"README.md", "README.md", "/usr/share/doc/lockstep/README.md"},
	{"configs/README.md", "doc/config.md", "/usr/share/doc/lockstep/config.md"},
	{"configs/deploy/README.md", "doc/deploy.md", "/usr/share/doc/lockstep/deploy.md"},
	{"configs/lockstep.example.yaml", "doc/lockstep.example.yaml", "/usr/share/doc/lockstep/lockstep.example.yaml"},
	{"configs/lockstep.schema.json", "doc/lockstep.schema.json", "/usr/share/doc/lockstep/lockstep.schema.json"},
	{"configs/deploy/systemd/lockstep.service", "systemd/lockstep.service", "/usr/lib/systemd/system/lockstep.service"},
	{"configs/deploy/systemd/lockstep.sysusers", "systemd/lockstep.sysusers", "/usr/lib/sysusers.d/lockstep.conf"},
}

// files returns the files around the program, in their order in the archive: manual pages,
// completions, and copies.
func (s *source) files() ([]file, error) {
	files, err := s.manual()
	if err != nil {
		return nil, err
	}
	root := cmd.Commands()
	for _, shell := range []struct {
		path, installed string
		write           func(*bytes.Buffer) error
	}{
		{"completions/lockstep.bash", "/usr/share/bash-completion/completions/lockstep", func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) }},
		{"completions/_lockstep", "/usr/share/zsh/vendor-completions/_lockstep", func(b *bytes.Buffer) error { return root.GenZshCompletion(b) }},
		{"completions/lockstep.fish", "/usr/share/fish/vendor_completions.d/lockstep.fish", func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) }},
	} {
		var text bytes.Buffer
		if err := shell.write(&text); err != nil {
			return nil, fmt.Errorf("%s: %w", shell.path, err)
		}
		files = append(files, file{path: shell.path, mode: 0o644, text: text.Bytes(), installed: shell.installed})
	}
	for _, c := range copies {
		text, err := os.ReadFile(filepath.Join(s.root, c.from))
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: c.to, mode: 0o644, text: text, installed: c.installed})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return files, nil
}

// manual returns a page for each command.
func (s *source) manual() (files []file, err error) {
	folder, err := os.MkdirTemp("", "lockstep-man-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	root := cmd.Commands()
	root.DisableAutoGenTag = true // a date
	header := &doc.GenManHeader{Title: "LOCKSTEP", Section: "1", Date: &s.date, Source: "lockstep " + s.version, Manual: "lockstep"}
	if err := doc.GenManTree(root, header, folder); err != nil {
		return nil, fmt.Errorf("manual pages: %w", err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: "man/" + entry.Name(), mode: 0o644, text: text, installed: "/usr/share/man/man1/" + entry.Name()})
	}
	return files, nil
}

// archive writes files into a folder of a compressed archive.
func (s *source) archive(path, folder string, files []file) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	compressed, err := gzip.NewWriterLevel(f, gzip.BestCompression) // without a name and a time
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, file := range files {
		header := &tar.Header{
			Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: folder + "/" + file.path, Mode: file.mode, Size: int64(len(file.text)),
			ModTime: s.date, Uname: "root", Gname: "root",
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(file.text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}
