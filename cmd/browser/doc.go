// Command browser opens the pages of lockstep in a real browser, Debian's chromium. It makes the
// picture of the README:
//
//	make picture
//	go run . -page http://127.0.0.1:9620 -o ../timeline.png    # of a demo that runs already
//
// Its tests walk through the pages with the mouse, the keyboard, and without JavaScript, and check
// them with axe-core (testdata/axe.min.js, under the license in testdata/axe-core.LICENSE).
//
// It is a module of its own, so that the client of the browser stays out of lockstep's go.mod. The
// policy of the pages is never bypassed: axe-core is evaluated through the protocol of the
// browser's developer tools, as an extension would be.
//
// A test skips if chromium is not installed. LOCKSTEP_TEST_ALL=1 forbids skipping.
package main
