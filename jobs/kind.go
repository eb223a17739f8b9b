package jobs

import (
	"slices"
	"strings"
	"time"
)

// Kind is one kind of work. Its name is the key of a config that gives a job this work.
type Kind struct {
	Name string

	// Timeout is the limit of each attempt of a job for which no file sets one. 0 means none.
	Timeout time.Duration

	// InProcess says that the work runs inside the worker's process. Only the end of that process
	// can stop it.
	InProcess bool

	has   func(*Job) bool
	line  func(*Job) string
	need  func(*Job) string    // nil: nothing
	texts func(*Job, *mapping) // replaces the texts of the work in a copy of the job; nil: none
}

// The kinds that mean something to other packages.
const (
	KindCommand = "command" // a stored definition without work counts as one
	KindHandler = "handler" // a worker shows others which handlers it has
)

// kinds is the only list of the kinds of work that code needs to do it. A new one is the last one,
// see [Job.Kind].
var kinds = []Kind{
	{
		Name: KindCommand,
		has:  func(j *Job) bool { return len(j.Command) > 0 },
		line: func(j *Job) string { return strings.Join(j.Command, " ") },
		texts: func(j *Job, m *mapping) {
			j.Command = slices.Clone(j.Command)
			path, before := []string{KindCommand, ""}, ""
			for i, word := range j.Command {
				path[1] = index(i)
				j.Command[i] = m.text(Text{Path: path, Role: Word, Value: word, Before: before})
				before = word
			}
		},
	},
	{
		Name: "http",
		// Without a timeout, a server that accepts a request and never replies would keep the run's
		// slot and its locks forever.
		Timeout: time.Hour,
		has:     func(j *Job) bool { return j.HTTP != nil },
		line:    func(j *Job) string { return j.HTTP.Method + " " + SafeURL(j.HTTP.URL) },
		texts: func(j *Job, m *mapping) {
			if j.HTTP == nil {
				return
			}
			request := *j.HTTP
			request.URL = m.text(Text{Path: []string{"http", "url"}, Role: URL, Value: request.URL})
			request.Headers = m.texts(Header, request.Headers, "http", "headers")
			j.HTTP = &request
		},
	},
	{
		Name:      KindHandler,
		InProcess: true,
		has:       func(j *Job) bool { return j.Handler != "" },
		line:      func(j *Job) string { return j.Handler },
		need:      func(j *Job) string { return j.Handler },
	},
}

// KindNames returns the names of all kinds of work, in the order in which messages show them.
func KindNames() []string {
	names := make([]string, len(kinds))
	for i := range kinds {
		names[i] = kinds[i].Name
	}
	return names
}

// Kind returns the kind of the job's work, or nil if the job has none.
//
// A job of a config has one kind. A stored definition may have several, and all workers must agree
// on one of them, because Redis stores what a worker must have to run the job. It is the last one
// in the order of [KindNames].
func (j *Job) Kind() *Kind {
	for i := range slices.Backward(kinds) {
		if kinds[i].has(j) {
			return &kinds[i]
		}
	}
	return nil
}

// Line describes the work of a job of this kind to people, in one line. It hides the secrets of a
// URL.
func (k *Kind) Line(job *Job) string { return k.line(job) }

// Need returns the name that the executor of this kind must know to do the work of a job: that of
// its handler. It returns "" if any executor of the kind can do the work. See [Chooser].
func (k *Kind) Need(job *Job) string {
	if k.need == nil {
		return ""
	}
	return k.need(job)
}
