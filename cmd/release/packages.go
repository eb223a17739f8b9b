package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// nfpm makes the packages. Its first build takes minutes, and later ones come from the cache. Newer
// versions need modules that the Go module proxy does not serve.
const nfpm = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"

// afterInstall makes the user of the unit. A restart of running workers is up to the operator: they
// continue with the program that they were started with.
const afterInstall = `#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then systemd-sysusers lockstep.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
`

// beforeRemove stops the worker, which drains, unless another version replaces this one. A package
// of Debian calls it with a word, and one of Red Hat with the number of versions that remain.
const beforeRemove = `#!/bin/sh
set -e
case "$1" in
remove | 0) if command -v systemctl >/dev/null; then systemctl stop lockstep || true; fi ;;
esac
`

// content is an entry of nfpm's config.
type content struct {
	Source string `json:"src,omitempty"`
	Target string `json:"dst"`
	Type   string `json:"type,omitempty"`
	Info   struct {
		Mode int64     `json:"mode"`
		Time time.Time `json:"mtime"`
	} `json:"file_info"`
}

// packages writes a package for Debian and one for Red Hat.
func (s *source) packages(ctx context.Context, work, out, arch string, files []file) error {
	var contents []content
	add := func(target, kind string, mode int64, text []byte) error {
		c := content{Target: target, Type: kind}
		c.Info.Mode, c.Info.Time = mode, s.date
		if text != nil {
			c.Source = filepath.Join(work, "content", target)
			if err := os.MkdirAll(filepath.Dir(c.Source), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(c.Source, text, 0o644); err != nil {
				return err
			}
		}
		contents = append(contents, c)
		return nil
	}
	for _, file := range files {
		target, text := file.installed, file.text
		switch {
		case file.path == "lockstep":
			target = "/usr/bin/lockstep"
		case target == "":
			continue
		case strings.HasPrefix(target, "/usr/share/man/"):
			var err error
			if text, err = compress(text); err != nil {
				return err
			}
			target += ".gz"
		}
		if err := add(target, "", file.mode, text); err != nil {
			return err
		}
	}
	// A worker reads every file in it, so a package must not put one there.
	if err := add("/etc/lockstep", "dir", 0o755, nil); err != nil {
		return err
	}
	scripts := make(map[string]string)
	for name, text := range map[string]string{"postinstall": afterInstall, "preremove": beforeRemove} {
		scripts[name] = filepath.Join(work, name)
		if err := os.WriteFile(scripts[name], []byte(text), 0o755); err != nil {
			return err
		}
	}
	version := strings.TrimPrefix(s.version, "v")
	// a package's version begins with a digit, and a tilde sorts before every release
	if strings.HasPrefix(version, "devel") {
		version = "0~" + version
	}
	config, err := json.Marshal(map[string]any{ // JSON is YAML
		"name": "lockstep", "arch": arch, "platform": "linux", "version": version, "version_schema": "none",
		"section": "admin", "priority": "optional", "maintainer": "lockstep <root@localhost>", "mtime": s.date,
		"description": "One cron schedule and one task queue on many workers, each run once",
		"contents":    contents, "scripts": scripts,
		"rpm": map[string]string{"buildhost": "localhost"},
	})
	if err != nil {
		return err
	}
	path := filepath.Join(work, "nfpm.yaml")
	if err := os.WriteFile(path, config, 0o644); err != nil {
		return err
	}
	for _, kind := range []string{"deb", "rpm"} {
		target := filepath.Join(out, fmt.Sprintf("lockstep_%s_linux_%s.%s", s.version, arch, kind))
		// GOFLAGS and GOOS of the caller are not for this program
		make := exec.CommandContext(ctx, "go", "run", nfpm, "package", "--config", path, "--packager", kind, "--target", target)
		make.Env = append(os.Environ(), fmt.Sprint("SOURCE_DATE_EPOCH=", s.date.Unix()))
		if out, err := make.CombinedOutput(); err != nil {
			return fmt.Errorf("nfpm: %w\n%s", err, out)
		}
	}
	return nil
}

// compress compresses a manual page, as packages have them.
func compress(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
