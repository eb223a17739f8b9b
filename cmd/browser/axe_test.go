package main

import (
	_ "embed"
	"testing"

	"github.com/chromedp/cdproto/runtime"
)

//go:embed testdata/axe.min.js
var axe string

// check runs axe-core and returns a line for each rule that the page violates. The last statement
// of the script must be the promise.
const check = `axe.run(document, {resultTypes: ["violations"]}).then((results) => results.violations.map((v) =>
	v.id + " (" + v.impact + "): " + v.help + ": " + v.nodes.slice(0, 5).map((n) => n.html + " " + n.failureSummary).join(" | ")))`

func TestPagesAreAccessibleInEveryLook(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := open(t, s)
	paths := []string{
		"/", "/jobs", "/jobs/settle-bills", "/jobs/settle-bills/run", "/jobs/next", "/runs", "/runs?job=settle-bills&select=page", "/runs/cancel?job=settle-bills", "/runs/retry?job=settle-bills", runPath(s.run), runPath(s.run) + "/cancel",
		"/locks", "/locks/bill:1001", "/timeline", "/timeline?group=lock", "/workers", "/workers/" + string(s.worker.Session()),
		"/queues", "/config", "/audit", "/nothing",
	}
	for _, l := range []look{light, dark, phone} {
		b.look(l)
		for _, path := range paths {
			b.visit(path)
			read[bool](b, axe+"; true")
			wait := func(p *runtime.EvaluateParams) { p.AwaitPromise = new(true) }
			for _, violation := range read[[]string](b, check, wait) {
				t.Errorf("%s, %s: %s", path, l.name, violation)
			}
			if wide := read[int64](b, `document.documentElement.scrollWidth`); wide > l.width {
				t.Errorf("%s, %s: it is %d pixels wide, more than the %d of the screen", path, l.name, wide, l.width)
			}
		}
	}
}
