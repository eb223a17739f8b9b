package web

import (
	"fmt"
	"net/http"

	"lockstep/locks/space"
)

// pages registers the pages. The package's doc lists them.
func (s *Server) pages() {
	s.handle("/{$}", s.overviewPage)
	s.jobPages()
	s.runPages()
	s.lockPages()
	s.workerPages()
	s.timelinePages()
	s.fleetPages()
	s.actPages()
}

// overviewPage answers with the overview. When Redis cannot be read it shows the last overview and
// says so.
func (s *Server) overviewPage(w http.ResponseWriter, r *http.Request) error {
	v := s.newView(r, "")
	v.Title = "Overview"
	if config := s.config(); wasRefused(config) || config != nil && len(config.NeedsRestart) > 0 {
		v.Config = config
	}
	status := http.StatusOK
	seen, err := s.pageOverview(r.Context())
	if err == nil {
		s.last.Store(seen)
		v.Title = fmt.Sprintf("%d running, %s", seen.Busy, plural(seen.WaitCount(), "wait", "waits"))
	} else {
		status, seen, v.Problem = http.StatusServiceUnavailable, s.last.Load(), err.Error()
		v.Title = "Redis cannot be read"
		if space.Refused(err) {
			status = http.StatusInternalServerError
		} else {
			w.Header().Set("Retry-After", "1")
		}
	}
	if seen != nil {
		v.Now, v.Seen, v.Reading = seen.At.Time, seen, seen.Reading
	}
	return s.render(w, status, "overview", v)
}
