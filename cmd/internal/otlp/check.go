package otlp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// settings is what this package itself reads of the environment. The exporters and the SDK read the
// rest.
type settings struct {
	grpc  bool
	queue int // spans that wait for the exporter
}

// On reports whether the environment asks for an exporter of spans. An error names a variable with
// a wrong value.
func On(getenv func(string) string) (bool, error) {
	get := trimmed(getenv)
	switch disabled := strings.ToLower(get("OTEL_SDK_DISABLED")); disabled {
	case "", "false":
	case "true":
		return false, nil
	default:
		return false, wrong("OTEL_SDK_DISABLED", disabled, "want true or false")
	}
	switch exporter := get("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	case "":
		return Endpoint(getenv) != "", nil
	default:
		return false, wrong("OTEL_TRACES_EXPORTER", exporter, "want otlp or none")
	}
}

// Endpoint returns the receiver that the environment names, without the user and the query of its
// URL, or "".
func Endpoint(getenv func(string) string) string {
	get := trimmed(getenv)
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if text := get(name); text != "" {
			u, err := url.Parse(text)
			if err != nil {
				return "(not a URL)"
			}
			return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
		}
	}
	return ""
}

func trimmed(getenv func(string) string) func(string) string {
	return func(name string) string { return strings.TrimSpace(getenv(name)) }
}

func wrong(name, value, want string) error { return fmt.Errorf("%s=%q: %s", name, value, want) }

// hidden is wrong for a variable that may contain a secret.
func hidden(name, want string) error { return fmt.Errorf("%s: %s", name, want) }

// Check checks every variable that the exporter of spans and the SDK read. The error has a line for
// each wrong value.
func Check(getenv func(string) string) error {
	_, err := read(getenv)
	return err
}

func read(getenv func(string) string) (settings, error) {
	get := trimmed(getenv)
	var problems []error
	check := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	s := settings{queue: 2048}

	protocol, from := "http/protobuf", ""
	for _, name := range own("PROTOCOL") {
		value := get(name)
		switch value {
		case "":
			continue
		case "grpc", "http/protobuf", "http/json":
		default:
			check(wrong(name, value, "want http/protobuf, http/json or grpc"))
			continue
		}
		if from == "" {
			protocol, from = value, name
		}
	}
	s.grpc = protocol == "grpc"

	for _, name := range own("ENDPOINT") {
		check(checkEndpoint(name, get(name)))
	}
	for _, name := range own("TIMEOUT") {
		_, err := number(name, get(name), 1)
		check(err)
	}
	for _, name := range own("COMPRESSION") {
		if value := get(name); value != "" && value != "gzip" && value != "none" {
			check(wrong(name, value, "want gzip or none"))
		}
	}
	for _, name := range own("INSECURE") {
		if value := strings.ToLower(get(name)); value != "" && value != "true" && value != "false" {
			check(wrong(name, value, "want true or false"))
		}
	}
	for _, name := range own("HEADERS") {
		check(checkPairs(name, get(name), hidden))
	}
	for _, name := range own("CERTIFICATE") {
		check(checkCertificate(name, get(name)))
	}
	check(checkClientCertificate(get, "OTEL_EXPORTER_OTLP_"))
	check(checkClientCertificate(get, "OTEL_EXPORTER_OTLP_TRACES_"))
	check(checkPairs("OTEL_RESOURCE_ATTRIBUTES", get("OTEL_RESOURCE_ATTRIBUTES"), func(name, want string) error {
		return wrong(name, get(name), want)
	}))
	check(checkSampler(get("OTEL_TRACES_SAMPLER"), get("OTEL_TRACES_SAMPLER_ARG")))
	for name, least := range map[string]int{
		"OTEL_BSP_SCHEDULE_DELAY": 1, "OTEL_BSP_EXPORT_TIMEOUT": 1, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 1,
		"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": 0, "OTEL_ATTRIBUTE_COUNT_LIMIT": 0, "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": 0,
		"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": 0, "OTEL_SPAN_EVENT_COUNT_LIMIT": 0, "OTEL_SPAN_LINK_COUNT_LIMIT": 0,
		"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": 0, "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": 0,
	} {
		_, err := number(name, get(name), least)
		check(err)
	}
	if queue, err := number("OTEL_BSP_MAX_QUEUE_SIZE", get("OTEL_BSP_MAX_QUEUE_SIZE"), 1); err != nil {
		check(err)
	} else if queue > 0 {
		s.queue = queue
	}
	return s, errors.Join(problems...)
}

// own returns the two variables of a setting, the one for spans alone first: it has precedence.
func own(setting string) []string {
	return []string{"OTEL_EXPORTER_OTLP_TRACES_" + setting, "OTEL_EXPORTER_OTLP_" + setting}
}

func checkEndpoint(name, value string) error {
	if value == "" {
		return nil
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return hidden(name, "want a URL that begins with http://host or https://host") // it may have a password
	}
	return nil
}

// number returns 0 for an empty value.
func number(name, value string, least int) (int, error) {
	if value == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least {
		unit := ""
		if strings.HasSuffix(name, "TIMEOUT") || strings.HasSuffix(name, "DELAY") {
			unit = " of milliseconds"
		}
		return 0, wrong(name, value, fmt.Sprintf("want a whole number%s, at least %d", unit, least))
	}
	return n, nil
}

// checkPairs checks a list such as key=value,key=value. Its values are percent-encoded.
func checkPairs(name, value string, fail func(name, want string) error) error {
	if value == "" {
		return nil
	}
	for pair := range strings.SplitSeq(value, ",") {
		key, text, is := strings.Cut(pair, "=")
		if !is || strings.TrimSpace(key) == "" {
			return fail(name, "want key=value, and commas between several of them")
		}
		if _, err := url.PathUnescape(text); err != nil {
			return fail(name, "want percent-encoded values: % is %25")
		}
	}
	return nil
}

func checkCertificate(name, path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return wrong(name, path, "want a file with certificates, PEM")
	}
	return nil
}

func checkClientCertificate(get func(string) string, prefix string) error {
	certificate, key := get(prefix+"CLIENT_CERTIFICATE"), get(prefix+"CLIENT_KEY")
	if certificate == "" && key == "" {
		return nil
	}
	if certificate == "" || key == "" {
		return fmt.Errorf("%sCLIENT_CERTIFICATE and %[1]sCLIENT_KEY: set both or neither", prefix)
	}
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		return fmt.Errorf("%sCLIENT_CERTIFICATE, %[1]sCLIENT_KEY: %w", prefix, err)
	}
	return nil
}

func checkSampler(sampler, argument string) error {
	const name = "OTEL_TRACES_SAMPLER"
	switch strings.ToLower(sampler) {
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
		return nil
	case "traceidratio", "parentbased_traceidratio":
	default:
		return wrong(name, sampler, "want always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or parentbased_traceidratio")
	}
	if argument == "" {
		return nil
	}
	if ratio, err := strconv.ParseFloat(argument, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
		return wrong(name+"_ARG", argument, "want a number from 0 to 1")
	}
	return nil
}
