package cmd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/configs"
)

const unitFile = "../configs/deploy/systemd/lockstep.service"

// maxExposure bounds the exposure of the unit as `systemd-analyze security` computes it, from 0 to
// 10.
const maxExposure = 3.0

func TestSystemdUnitSuitsTheWorker(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(unitFile)
	must(t, err)
	if got := unitFaults(t, string(text)); len(got) > 0 {
		t.Errorf("%s: %q", unitFile, got)
	}
	for _, broken := range []struct{ from, to, fault string }{
		{"Type=notify", "Type=simple", "Type is"},
		{"NotifyAccess=main", "NotifyAccess=all", "NotifyAccess is"},
		{"KillMode=mixed", "KillMode=control-group", "KillMode is"},
		{"kill -HUP", "kill -USR1", "ExecReload is"},
		{"TimeoutStopSec=65", "TimeoutStopSec=50", "TimeoutStopSec is"},
		{"WatchdogSec=60", "WatchdogSec=15", "WatchdogSec is"},
		{"RestartPreventExitStatus=2 3", "RestartPreventExitStatus=2 4", "RestartPreventExitStatus is"},
		{"lockstep start", "lockstep begin", "ExecStart:"},
		{"--watch", "--wach", "ExecStart:"},
		{"OOMPolicy=continue", "OOMPolicy=stop", "OOMPolicy is"},
	} {
		got := unitFaults(t, strings.Replace(string(text), broken.from, broken.to, 1))
		if !slices.ContainsFunc(got, func(fault string) bool { return strings.HasPrefix(fault, broken.fault) }) {
			t.Errorf("with %s, the faults are %q, want %q", broken.to, got, broken.fault)
		}
	}
}

// unitFaults returns where a unit does not suit what a worker does.
func unitFaults(t *testing.T, text string) (faults []string) {
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			values[key] = value
		}
	}
	for key, want := range map[string]string{
		"Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "OOMPolicy": "continue", "Restart": "on-failure", "LimitCORE": "0",
		"ExecReload":               "/bin/kill -HUP $MAINPID",
		"RestartPreventExitStatus": fmt.Sprint(exitUsage, " ", exitConfig),
	} {
		if values[key] != want {
			faults = append(faults, fmt.Sprintf("%s is %q, want %q", key, values[key], want))
		}
	}
	config, err := configs.Load(configs.Options{})
	must(t, err)
	seconds := func(key string) time.Duration {
		n, _ := strconv.Atoi(values[key])
		return time.Duration(n) * time.Second
	}
	if got, want := seconds("TimeoutStopSec"), config.Settings.Worker.DrainTimeout+afterDrain; got != want {
		faults = append(faults, fmt.Sprintf("TimeoutStopSec is %s, want the default drain_timeout and %s: %s", got, afterDrain, want))
	}
	if got, want := seconds("WatchdogSec"), 3*config.Settings.Locks.Lease; got < want {
		faults = append(faults, fmt.Sprintf("WatchdogSec is %s, want three default leases or more: %s", got, want))
	}
	program, args, _ := strings.Cut(values["ExecStart"], " ")
	if program != "/usr/bin/lockstep" {
		faults = append(faults, "ExecStart: "+program)
	}
	if err := knows(t, words(args)); err != nil {
		faults = append(faults, "ExecStart: "+err.Error())
	}
	return faults
}

func TestSystemdAcceptsTheUnit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil && !allTests() {
		t.Skip("systemd-analyze is missing: install systemd")
	}
	text, err := os.ReadFile(unitFile)
	must(t, err)
	analyze := func(unit string, args ...string) (out string, failed error) {
		path := filepath.Join(t.TempDir(), "lockstep.service")
		write(t, path, unit)
		b, err := exec.CommandContext(t.Context(), "systemd-analyze", append(args, path)...).CombinedOutput()
		return string(b), err
	}
	// it looks for the program
	unit := strings.ReplaceAll(string(text), "/usr/bin/lockstep", toolPath)
	if out, err := analyze(unit, "verify", "--man=no"); err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := analyze(strings.Replace(unit, "OOMPolicy=", "OMPolicy=", 1), "verify", "--man=no"); err == nil && out == "" {
		t.Error("systemd-analyze accepts a key that does not exist")
	}
	threshold := fmt.Sprint("--threshold=", int(10*maxExposure))
	if out, err := analyze(unit, "security", "--offline=true", threshold); err != nil {
		t.Errorf("the unit is exposed by more than %.1f: %v\n%s", maxExposure, err, tail(out))
	}
	open := strings.NewReplacer("ProtectSystem=strict", "ProtectSystem=no", "CapabilityBoundingSet=", "#", "SystemCallFilter=", "#", "PrivateDevices=yes", "#").Replace(unit)
	if out, err := analyze(open, "security", "--offline=true", threshold); err == nil {
		t.Errorf("an open unit is not found: %s", tail(out))
	}
}
