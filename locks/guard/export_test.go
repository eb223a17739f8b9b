package guard

// Assembled reports whether the script of Check was assembled.
func Assembled() bool { return checkScript.script != nil }
