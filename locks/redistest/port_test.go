package redistest

import "testing"

// The port of a killed server belongs to it until Stop: sentinels that still look for it would
// otherwise take the server of another test for it.
func TestPortOfAKilledServerIsClaimed(t *testing.T) {
	t.Parallel()
	s := New(t, Options{TCP: true})
	s.Kill()
	if claim, err := claimOf(t.Context(), s.port); err == nil {
		_ = claim.Close()
		t.Errorf("the port %d of a killed server was given away", s.port)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if s.claim != nil {
		t.Error("a stopped server keeps the claim of its port")
	}
}
