package configs

import (
	"encoding/json"
	"time"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
)

// The types of this file are what a config file may say: each field is a key. A nil pointer, map or slice is a key that
// was not written. The decoder reads them by these tags:
//
//	yaml      the key; ",inline" for a struct whose keys stand among those of the struct around it
//	enum      the words that are possible
//	min, max  bounds of a number, a duration, or each value of a map
//	check     a function of checks (checks.go), for the value or each element of a list
//	keys      the same, for the keys of a map
//	size      the least number of elements of a list or map
//	secret    the value is never quoted in a problem
//
// A string is replaced (see the package doc) when it is loaded, a text when the job runs, and prose never.

// text is a value of a job that keeps its ${...} until the job runs.
type text string

// prose is a value in which ${...} means nothing.
type prose string

// file is one config file.
type file struct {
	settingsFile `yaml:",inline"`

	Include  []string            `yaml:"include"`  // files and patterns, relative to this file
	Defaults *policies           `yaml:"defaults"` // for all jobs of all files
	Jobs     map[string]*jobFile `yaml:"jobs"`
}

// settingsFile is the part of a file that becomes [Settings], with the same keys.
type settingsFile struct {
	Redis  *redisFile  `yaml:"redis"`
	Worker *workerFile `yaml:"worker"`
	Locks  *locksFile  `yaml:"locks"`
	Admin  *adminFile  `yaml:"admin"`
	Log    *logFile    `yaml:"log"`
}

type redisFile struct {
	URL          *string `yaml:"url" check:"redis-url" secret:"true"`
	PasswordFile *string `yaml:"password_file"`
	Namespace    *string `yaml:"namespace" check:"namespace"`
}

type workerFile struct {
	Name         *string        `yaml:"name" check:"worker-name"`
	Concurrency  *int           `yaml:"concurrency" min:"1" max:"100000"`
	DrainTimeout *time.Duration `yaml:"drain_timeout" min:"0s"`
	Queues       map[string]int `yaml:"queues" keys:"queue" min:"1" max:"100" size:"1"` // asynq shuffles as many names as the weights add up to
}

type locksFile struct {
	Lease        *time.Duration `yaml:"lease" min:"2s" max:"10m"`
	ReserveAfter *time.Duration `yaml:"reserve_after" min:"0s"`
}

type adminFile struct {
	Listen *string `yaml:"listen" check:"address"`
}

type logFile struct {
	Level  *string `yaml:"level" enum:"debug,info,warn,error"`
	Format *string `yaml:"format" enum:"auto,text,json"`
}

// policies are the keys that a job and the defaults share.
type policies struct {
	Timezone   *string        `yaml:"timezone" check:"timezone"`
	Queue      *string        `yaml:"queue" check:"queue"`
	Timeout    *time.Duration `yaml:"timeout" min:"0s"` // 0s: none, against a default
	Retry      *retryFile     `yaml:"retry"`
	Overlap    *jobs.Overlap  `yaml:"overlap" enum:"skip,queue,allow,replace"`
	MaxQueued  *int           `yaml:"max_queued" min:"1"`
	OnMissed   *jobs.OnMissed `yaml:"on_missed" enum:"skip,last,all"`
	OnCrash    *jobs.OnCrash  `yaml:"on_crash" enum:"rerun,abandon"`
	MaxCrashes *int           `yaml:"max_crashes" min:"1"`
	History    *historyFile   `yaml:"history"`

	StartDeadline *time.Duration `yaml:"start_deadline" min:"0s"` // 0s: none, against a default
	Jitter        *time.Duration `yaml:"jitter" min:"0s"`
	MaxSilence    *time.Duration `yaml:"max_silence" min:"0s"` // 0s: never late, against a default
}

type retryFile struct {
	Max      *int           `yaml:"max" min:"0"`
	Backoff  *jobs.Backoff  `yaml:"backoff" enum:"fixed,linear,exponential"`
	Initial  *time.Duration `yaml:"initial" min:"0s"`
	MaxDelay *time.Duration `yaml:"max_delay" min:"0s"`
}

type historyFile struct {
	Runs *int           `yaml:"runs" min:"1"`
	For  *time.Duration `yaml:"for" min:"1s"`
}

type jobFile struct {
	policies `yaml:",inline"`

	Description *prose          `yaml:"description"`
	Schedule    *string         `yaml:"schedule"`
	Every       *time.Duration  `yaml:"every"` // its bounds are cronspec's
	Command     []text          `yaml:"command" size:"1"`
	HTTP        *httpFile       `yaml:"http"`
	Handler     *string         `yaml:"handler" check:"handler"`
	Args        json.RawMessage `yaml:"args"`
	Env         map[string]text `yaml:"env" keys:"env"`
	Lock        *lockFile       `yaml:"lock"`
	Paused      *bool           `yaml:"paused"`

	name string
	src  *source
	key  *yaml.Node // the job's name, where it is defined
	node *yaml.Node // its keys and values; nil for a job without any

	broken     bool // it is no map of keys, which was reported
	likelyWork bool // a misspelled key is probably what it does
}

type httpFile struct {
	Method  *string         `yaml:"method" enum:"GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS"`
	URL     *text           `yaml:"url" check:"http-url"`
	Headers map[string]text `yaml:"headers" keys:"header"`
}

type lockFile struct {
	Exclusive []string       `yaml:"exclusive" check:"lock-key"`
	Wait      *time.Duration `yaml:"wait" min:"0s"` // 0s: without limit
	OnBusy    *jobs.OnBusy   `yaml:"on_busy" enum:"requeue,skip,fail"`
}
