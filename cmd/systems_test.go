package cmd

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestTheToolBuildsForOtherSystems checks the types of everything that a command line needs: on
// Windows without workers, on macOS with them.
func TestTheToolBuildsForOtherSystems(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it compiles all packages for two more systems")
	}
	for _, system := range []string{"windows", "darwin"} {
		vet := exec.CommandContext(t.Context(), "go", "vet", "lockstep/cmd/lockstep")
		vet.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		if out, err := vet.CombinedOutput(); err != nil {
			t.Errorf("GOOS=%s %s: %v\n%s", system, strings.Join(vet.Args, " "), err, out)
		}
	}
}
