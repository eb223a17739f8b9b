package configs

import (
	"regexp"
	"strings"
	"testing"
)

// The code that recognizes secrets is written by hand for speed. This pattern defines what it must
// do.
func TestSecretTextsMatchTheirPattern(t *testing.T) {
	t.Parallel()
	meant := regexp.MustCompile(`\b(` + strings.Join(secretPrefixes, "|") + `)[A-Za-z0-9_-]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY`)
	secrets := 0
	for _, begin := range append([]string{"-----BEGIN RSA PRIVATE KEY", "-----BEGIN  key", "ghp", ""}, secretPrefixes...) {
		for _, before := range []string{"", "x", "_", "-", " ", "é", "Bearer ", "a=", "0"} {
			for _, after := range []string{"", "abcdefghijk", "abcdefghijkl", "ABCDEF-12345_ more", "abcdef.ghijklmnop", "abcdefghijké"} {
				text := before + begin + after
				if got, want := isSecretText(text), meant.MatchString(text); got != want {
					t.Errorf("%q: %t, want %t", text, got, want)
				} else if got {
					secrets++
				}
			}
		}
	}
	if secrets < 100 {
		t.Errorf("only %d secrets among the texts", secrets)
	}
}
