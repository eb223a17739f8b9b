package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/router"
	"github.com/pb33f/libopenapi-validator/schema_validation"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
)

const v1 = "/api/v1/"

// contract is a client of a server. It checks each exchange against a document of the API.
type contract struct {
	url       string
	transport *http.Transport
	document  *v3.Document
	routes    router.Router
	checks    validator.Validator
	shapes    schema_validation.SchemaValidator
	find      func(format string, args ...any) // reports that the document is wrong

	// seen has what exchanges have shown of the document: see unseen. Contracts may share it.
	seen map[string]bool
}

// newContract returns a client that checks a server against the server's own document. It fails the
// test for each finding.
func newContract(t *testing.T, url string, seen map[string]bool, headers ...string) *contract {
	t.Helper()
	return newContractBy(t, url, documentOf(t, url, headers...), seen, t.Errorf)
}

// documentOf returns the document that a server serves.
func documentOf(t *testing.T, url string, headers ...string) []byte {
	t.Helper()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+v1+"openapi.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	setHeaders(r, headers)
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	document, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d, %v", r.URL, response.StatusCode, err)
	}
	return document
}

// newContractBy returns a client that checks a server against a document.
func newContractBy(t *testing.T, url string, document []byte, seen map[string]bool, find func(string, ...any)) *contract {
	t.Helper()
	exact, open := closed(t, document)
	for _, place := range open {
		find("%s: the schema permits any value, so it hides a shape: see route.gives", place)
	}
	parsed, err := libopenapi.NewDocument(exact)
	if err != nil {
		t.Fatal(err)
	}
	if parsed.GetVersion() != "3.1.0" {
		find("the document is of the version %q, want OpenAPI 3.1.0", parsed.GetVersion())
	}
	model, err := parsed.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	// The strict mode finds undeclared parameters and headers. In bodies it also finds the keys of
	// maps, so there, closed schemas do its work.
	checks, errs := validator.NewValidator(parsed, config.WithFormatAssertions(), config.WithRejectUndeclaredRequestBody(),
		config.WithStrictMode(), config.WithStrictIgnorePaths("$.body"))
	if errs != nil {
		t.Fatal(errs)
	}
	c := &contract{
		url: url, transport: new(http.Transport), document: &model.Model, routes: router.NewRouter(&model.Model, router.WithPathOnlyMatching()),
		checks: checks, shapes: schema_validation.NewSchemaValidator(config.WithFormatAssertions()), find: find, seen: seen,
	}
	t.Cleanup(c.transport.CloseIdleConnections)
	if valid, errs := checks.ValidateDocument(); !valid {
		c.report("the document", errs)
	}
	return c
}

func (c *contract) report(of string, errs []*errors.ValidationError) {
	for _, err := range errs {
		c.find("%s: %v", of, err)
	}
}

// anyValues are the fields that clients of the API fill: their values have no shape of ours.
var anyValues = []string{"args", "info"}

// closed returns a document with schemas that permit no other fields than those they name: to
// clients, objects may gain fields, but the server of a document has none that the document lacks.
// It also returns the places where a schema permits any value, besides anyValues and the reply that
// is a document itself.
func closed(t *testing.T, document []byte) (exact []byte, open []string) {
	t.Helper()
	var closeSchema func(place string, schema any)
	closeSchema = func(place string, schema any) {
		of, is := schema.(map[string]any)
		if !is {
			return
		}
		if len(of) == 0 {
			open = append(open, place)
		}
		properties, _ := of["properties"].(map[string]any)
		for name, property := range properties {
			if !slices.Contains(anyValues, name) {
				closeSchema(place+"."+name, property)
			}
		}
		variants, _ := of["anyOf"].([]any)
		for i, variant := range variants {
			closeSchema(fmt.Sprintf("%s.anyOf.%d", place, i), variant)
		}
		for _, name := range []string{"items", "additionalProperties"} {
			closeSchema(place+"."+name, of[name])
		}
		if properties != nil && of["additionalProperties"] == nil {
			of["additionalProperties"] = false
		}
	}
	var find func(place string, element any)
	find = func(place string, element any) {
		switch element := element.(type) {
		case map[string]any:
			for name, child := range element {
				switch at := place + "." + name; name {
				case "schema":
					closeSchema(at, child)
				case "schemas":
					for of, schema := range child.(map[string]any) {
						closeSchema(at+"."+of, schema)
					}
				case v1 + "openapi.json":
				default:
					find(at, child)
				}
			}
		case []any:
			for i, child := range element {
				find(fmt.Sprintf("%s.%d", place, i), child)
			}
		}
	}
	var root any
	if err := json.Unmarshal(document, &root); err != nil {
		t.Fatal(err)
	}
	find("", root)
	exact, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(open)
	return exact, open
}

// RoundTrip sends a request and checks the reply, and the request if it is accepted.
func (c *contract) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	of := fmt.Sprintf("%s %s: %d", r.Method, r.URL, response.StatusCode)
	_, errs := c.checks.ValidateHttpResponse(r, response)
	c.report(of, errs)
	if response.StatusCode < http.StatusBadRequest {
		asked := r.Clone(r.Context())
		if r.GetBody != nil {
			if asked.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		_, errs = c.checks.ValidateHttpRequestSync(asked)
		c.report(of, errs)
	}
	return response, c.note(r, response)
}

// note keeps which promises of the document an exchange has shown.
func (c *contract) note(r *http.Request, response *http.Response) error {
	route, err := c.routes.FindRoute(r)
	if err != nil {
		return nil // reported already
	}
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if media == "application/problem+json" {
		c.seen[problemPromise(response.StatusCode)] = true
		return nil
	}
	at := r.Method + " " + route.Path
	for _, p := range route.Operation.Parameters {
		if value := r.URL.Query().Get(p.Name); p.In == "query" && value != "" {
			c.seen[valuePromise(at, p, value)] = true
		}
		if p.In == "header" && r.Header.Get(p.Name) != "" {
			c.seen[valuePromise(at, p, "")] = true
		}
	}
	declared := route.Operation.Responses.Codes.GetOrZero(fmt.Sprint(response.StatusCode))
	if declared == nil {
		return nil // reported already
	}
	if media != "application/json" {
		c.seen[replyPromise(at, fmt.Sprint(response.StatusCode), media)] = true
		return nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	var reply any
	if err := json.Unmarshal(body, &reply); err != nil {
		return nil // reported already
	}
	if list, is := reply.(map[string]any); is {
		if items, is := list["items"].([]any); is && len(items) == 0 {
			return nil // an empty list shows nothing of its shape
		}
	}
	promise := replyPromise(at, fmt.Sprint(response.StatusCode), media)
	content := declared.Content.GetOrZero(media)
	if content == nil || len(content.Schema.Schema().AnyOf) == 0 {
		c.seen[promise] = true
		return nil
	}
	var shapes []string
	for _, variant := range content.Schema.Schema().AnyOf {
		if valid, _ := c.shapes.ValidateSchemaObject(variant.Schema(), reply); valid {
			shapes = append(shapes, variant.GetReference())
		}
	}
	if len(shapes) == 1 { // else the reply does not show which
		c.seen[promise+" "+shapes[0]] = true
	}
	return nil
}

func problemPromise(status int) string { return fmt.Sprintf("a problem with status %d", status) }
func replyPromise(at, status, media string) string {
	return strings.TrimSpace(at + " " + status + " " + media)
}

// valuePromise is that a server takes a parameter, or each of the values that it may have.
func valuePromise(at string, p *v3.Parameter, value string) string {
	if schema := p.Schema.Schema(); len(schema.Enum) == 0 {
		return at + " " + p.Name
	}
	return at + " " + p.Name + "=" + value
}

// unseen returns what the document promises and no exchange has shown: each successful reply of
// each operation, in each of its shapes; each parameter, with each of its values; and each status
// of a problem.
func (c *contract) unseen() []string {
	promises := make(map[string]bool)
	for path, item := range c.document.Paths.PathItems.FromOldest() {
		for method, operation := range item.GetOperations().FromOldest() {
			at := strings.ToUpper(method) + " " + path
			for _, p := range operation.Parameters {
				if p.In == "path" {
					continue
				}
				promises[valuePromise(at, p, "")] = len(p.Schema.Schema().Enum) == 0
				for _, value := range p.Schema.Schema().Enum {
					promises[valuePromise(at, p, value.Value)] = true
				}
			}
			for status, reply := range operation.Responses.Codes.FromOldest() {
				if reply.Content == nil {
					promises[replyPromise(at, status, "")] = true
					continue
				}
				for media, content := range reply.Content.FromOldest() {
					if media == "application/problem+json" {
						promises["a problem with status "+status] = true
						continue
					}
					variants := content.Schema.Schema().AnyOf
					promises[replyPromise(at, status, media)] = len(variants) == 0
					for _, variant := range variants {
						promises[replyPromise(at, status, media)+" "+variant.GetReference()] = true
					}
				}
			}
		}
	}
	maps.DeleteFunc(promises, func(promise string, is bool) bool { return !is || c.seen[promise] })
	return slices.Sorted(maps.Keys(promises))
}

// send sends a request and checks the exchange and the status. It returns the reply's body.
func (c *contract) send(t *testing.T, method, path, body string, want int, headers ...string) string {
	t.Helper()
	status, text := c.exchange(t, method, path, body, headers...)
	if status != want {
		t.Errorf("%s %s %s: got %d, %s, want %d", method, path, body, status, text, want)
	}
	return text
}

// exchange sends a request and checks the exchange. Of a stream, it reads only the begin.
func (c *contract) exchange(t *testing.T, method, path, body string, headers ...string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	setHeaders(r, headers)
	response, err := c.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		return response.StatusCode, ""
	}
	all, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(all)
}

// setHeaders sets headers of a request: names, each with its value.
func setHeaders(r *http.Request, headers []string) {
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
}
