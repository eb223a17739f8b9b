package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"lockstep/scheduler/admin"
)

// wasRefused reports whether the last reload was refused.
func wasRefused(c *admin.Config) bool { return c != nil && !c.RefusedAt.IsZero() }

// ErrNoConfig is returned when this process has no config to describe or reload.
var ErrNoConfig = errors.New("this process has no config of a worker")

// configRoutes registers the paths of the worker's config.
func (s *Server) configRoutes(v1 string) {
	one(s, v1+"config", func(context.Context, question) (*admin.Config, error) {
		config := s.config()
		if config == nil {
			return nil, ErrNoConfig
		}
		return config, nil
	}).as("getConfig", "The config of the worker that answers")
	list(s, v1+"config/jobs", func(_ context.Context, q question) (*part[admin.ConfigJob], error) {
		config := s.config()
		if config == nil {
			return nil, ErrNoConfig
		}
		jobs := make([]admin.ConfigJob, 0, len(config.Places))
		for _, name := range slices.Sorted(maps.Keys(config.Places)) {
			jobs = append(jobs, admin.ConfigJob{Job: name, At: config.Places[name]})
		}
		return cut(q, jobs, func(job *admin.ConfigJob) string { return job.Job }), nil
	}).as("listConfigJobs", "The jobs in the config of the worker that answers, by name, and where they are defined")
	reload := s.register(http.MethodPost, reloadPath, RoleAdmin, func(w http.ResponseWriter, r *http.Request) {
		told := line{who: asker(r), action: "reload config", on: s.o.Worker()}
		if err := s.reload(w, r, told); err != nil {
			s.refuse(w, r, told, err)
		}
	}).as("reloadConfig", "Load the config again; with status 422, the old one stays").takes(reloadOrder{}).
		gives(http.StatusOK, admin.Config{}).gives(http.StatusUnprocessableEntity, admin.Config{})
	reload.hidden = s.o.Reload == nil
}

// config returns a description of the config, or nil.
func (s *Server) config() *admin.Config {
	if s.o.Config == nil {
		return nil
	}
	config := s.o.Config()
	if config == nil {
		return nil
	}
	full := *config // lists are never null
	full.Files = append([]string{}, config.Files...)
	full.Problems = append([]admin.ConfigProblem{}, config.Problems...)
	full.NeedsRestart = append([]string{}, config.NeedsRestart...)
	full.Worker = s.o.Worker()
	return &full
}

const (
	reloadLimit    = 4 << 10 // of the body of a request to reload
	reloadPatience = 2 * time.Minute
)

// reloadOrder is the body of a request to load the config again.
type reloadOrder struct {
	Worker string `json:"worker"` // the intended one; "" for any
}

// reload loads the config again and answers with the outcome: 200 when the new one is in use, 422
// when it was refused and the old one stays. The body may name the intended worker; any other
// worker answers 409.
func (s *Server) reload(w http.ResponseWriter, r *http.Request, told line) error {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return errOnlyPost
	}
	if s.o.Reload == nil {
		return ErrNoConfig
	}
	if s.isForeign(r) {
		return errOrigin
	}
	if err := s.demand(r.Context(), RoleAdmin); err != nil {
		return err
	}
	if _, err := ask(r); err != nil {
		return err
	}
	var wanted reloadOrder
	if r.ContentLength != 0 {
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, reloadLimit))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&wanted); err != nil {
			return fmt.Errorf("%w: the body: %w", admin.ErrInvalid, err)
		}
	}
	if self := s.o.Worker(); wanted.Worker != "" && wanted.Worker != self {
		return fmt.Errorf("%w: this is the worker %q, not %q", errOtherWorker, self, wanted.Worker)
	}
	allow(w, reloadPatience) // for very many jobs
	if err := s.o.Reload(r.Context()); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	config := s.config()
	if config == nil {
		return ErrNoConfig
	}
	status, detail := http.StatusOK, "config "+config.Digest
	if told.done = !wasRefused(config); !told.done {
		status, detail = http.StatusUnprocessableEntity, fmt.Sprintf("refused: errors in %d places", len(config.Problems))
		told.status, told.because = status, detail
	}
	s.tell(r.Context(), told, false)
	if s.o.Operator != nil {
		// The reload has happened, whether or not the audit can keep it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actLimit)
		defer cancel()
		if err := s.o.Operator.Audit(ctx, told.action, told.on, detail, admin.Actor{Who: told.who}); err != nil {
			s.o.Logger.ErrorContext(ctx, "a reload of the config is not in the audit", "error", err)
		}
	}
	return writeJSON(w, status, config)
}

var errOtherWorker = errors.New("another worker is meant")

// noOrder is the body of a request without fields, which changes nothing.
type noOrder struct{}

func (noOrder) tell(l *line) { l.dry = true }

// check answers with what a reload of the config would do.
func (s *Server) check(ctx context.Context, _ *http.Request, _ noOrder, _ admin.Actor) (int, any, error) {
	if s.o.Check == nil {
		return 0, nil, ErrNoConfig
	}
	checked, err := s.o.Check(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	checked.Worker = s.o.Worker()
	return http.StatusOK, checked, nil
}
