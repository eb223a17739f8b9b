package space

import (
	"testing"

	"lockstep/locks/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
