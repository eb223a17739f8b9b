package locks_test

const holderURL = "LOCKSTEP_LOCKS_TEST_HOLDER"

func holderMain() int { return 0 }
