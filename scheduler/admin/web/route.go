package web

import (
	"net/http"
	"reflect"
	"strings"
)

// route is a path of the server, and what the document of the API says about it. A path enters the
// mux and the table of routes in one step, so the document lacks none.
type route struct {
	method  string // GET, which includes HEAD, or POST
	pattern string // of the mux, which has no method in it
	least   Role   // that its users need; "" for a probe, which has no user
	hidden  bool   // this server answers 404: it cannot do what the path asks for

	id      string // of the operation, for the names in generated clients
	summary string
	query   []string            // parameters, by their names in parameters
	values  map[string][]string // of parameters of the query, if the path takes only these
	header  []string            // parameters in the header, by their names in parameters
	body    reflect.Type        // of a request; nil: it has none
	fields  []string            // of the body, by their names in JSON: those that the path takes
	needs   []string            // of fields: those that a request must have
	most    int64               // bytes of the body
	replies []reply
}

// reply is one successful answer.
type reply struct {
	status int
	media  string       // the media type
	body   reflect.Type // of a JSON object; nil: the answer is text, or empty without a media type
}

// register adds a path to the mux and to the table. Nothing else calls the mux. A method in the
// pattern would make the mux itself answer other methods, in plain text.
func (s *Server) register(method, pattern string, least Role, answer http.HandlerFunc) *route {
	s.mux.HandleFunc(pattern, answer)
	r := &route{method: method, pattern: pattern, least: least, most: bodyMost}
	s.table = append(s.table, r)
	return r
}

// isAPI reports whether the document of the API includes the path.
func (r *route) isAPI() bool { return strings.HasPrefix(r.pattern, "/api/") }

// as names the operation and describes it in one line.
func (r *route) as(id, summary string) *route {
	r.id, r.summary = id, summary
	return r
}

// asks adds parameters of the query.
func (r *route) asks(names ...string) *route {
	r.query = append(r.query, names...)
	return r
}

// among names the values that the path takes of a parameter of the query.
func (r *route) among(name string, values ...string) *route {
	if r.values == nil {
		r.values = make(map[string][]string)
	}
	r.values[name] = values
	return r
}

// resumes adds the header of a client that has lost its stream of events.
func (r *route) resumes() *route {
	r.header = append(r.header, "Last-Event-ID")
	return r
}

// asksFor says that the path creates runs for the run that the request names in its header, see
// [runHeader].
func (r *route) asksFor() *route {
	r.header = append(r.header, runHeader)
	return r
}

// takes sets the type of a request's body, and which of its fields the path takes; none: all.
func (r *route) takes(body any, fields ...string) *route {
	r.body, r.fields = reflect.TypeOf(body), fields
	return r
}

// requires names the fields without which a request is refused. Without them the body may be
// omitted.
func (r *route) requires(fields ...string) *route {
	r.needs = fields
	return r
}

// upTo sets how many bytes a request's body may have.
func (r *route) upTo(bytes int64) *route {
	r.most = bytes
	return r
}

// gives adds a successful answer: a JSON object of the type of body. With several calls for a
// status, the answer has one of their types. A pointer to any adds nothing: other calls name the
// types.
func (r *route) gives(status int, body any) *route {
	t := reflect.TypeOf(body)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Interface {
		r.replies = append(r.replies, reply{status, "application/json", t})
	}
	return r
}

// givesText adds a successful answer that is a text, or empty without a media type.
func (r *route) givesText(status int, media string) *route {
	r.replies = append(r.replies, reply{status: status, media: media})
	return r
}

// problems returns the statuses with which the path may answer with a problem. A method that the
// path does not take is not an operation of the document.
func (r *route) problems(mode AuthMode) []int {
	statuses := []int{http.StatusBadRequest}
	if mode != AuthNone {
		statuses = append(statuses, http.StatusUnauthorized)
	}
	statuses = append(statuses, http.StatusForbidden, http.StatusNotFound)
	if r.method == http.MethodPost {
		statuses = append(statuses, http.StatusConflict, http.StatusRequestEntityTooLarge)
	}
	if mode == AuthBasic || mode == AuthToken {
		statuses = append(statuses, http.StatusTooManyRequests)
	}
	return append(statuses, http.StatusInternalServerError, http.StatusServiceUnavailable)
}
