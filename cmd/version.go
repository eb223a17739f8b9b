package cmd

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// The stamps of a release, which the linker sets: cmd/release. A program without them, as
// `make build` or another module builds it, has those that the go command recorded.
var (
	version  string // a tag, or devel-COMMIT
	revision string
	date     string // of the revision, RFC 3339
)

// build describes this binary.
type build struct {
	Version  string `json:"version"` // of the module that was built: a tag, or "devel"
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified"`       // the checkout had changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if version != "" {
		b.Version, b.Revision, b.Time = version, revision, date
		return b
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			b.Revision = setting.Value
		case "vcs.time":
			b.Time = setting.Value
		case "vcs.modified":
			b.Modified = setting.Value == "true"
		}
	}
	return b
}

// short is the version that workers report.
func (b build) short() string {
	if b.Version != "devel" || b.Revision == "" {
		return b.Version
	}
	return "devel-" + b.Revision[:min(8, len(b.Revision))]
}

func (t *tool) versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: noArgs}
	output := outputFlag(cmd, text, asJSON, asYAML)
	cmd.RunE = func(*cobra.Command, []string) error {
		b := readBuild()
		if *output != text {
			return t.encode(*output, b)
		}
		commit := ""
		if b.Revision != "" {
			commit = fmt.Sprintf(" (commit %.12s, %s)", b.Revision, b.Time)
		}
		_, err := fmt.Fprintf(t.stdout, "lockstep %s %s %s%s\n", b.short(), b.Go, b.Platform, commit)
		return err
	}
	return cmd
}
