package redistest

// OnDisk makes all later servers of this process keep their files in TMPDIR.
func OnDisk() { memory = "" }
