package otlp_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/cmd/internal/otlp"
)

func from(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func TestTheEnvironmentSwitchesTheExporterOn(t *testing.T) {
	t.Parallel()
	const endpoint, traces, exporter, disabled = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
	for _, c := range []struct {
		env map[string]string
		on  bool
	}{
		{nil, false},
		{map[string]string{endpoint: "http://x:4318"}, true},
		{map[string]string{traces: "http://x:4318/v1/traces"}, true},
		{map[string]string{exporter: "otlp"}, true},
		{map[string]string{endpoint: "  "}, false}, // an empty value is unset
		{map[string]string{endpoint: "http://x:4318", exporter: "none"}, false},
		{map[string]string{endpoint: "http://x:4318", disabled: "true"}, false},
		{map[string]string{endpoint: "http://x:4318", disabled: "TRUE"}, false},
		{map[string]string{endpoint: "http://x:4318", disabled: "false"}, true},
		{map[string]string{"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x:4318"}, false},
	} {
		if on, err := otlp.On(from(c.env)); on != c.on || err != nil {
			t.Errorf("%v: got %t, %v, want %t", c.env, on, err, c.on)
		}
	}
}

func TestAWrongValueIsAnErrorThatNamesItsVariable(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string][]string{
		"OTEL_SDK_DISABLED":    {"yes", "1"},
		"OTEL_TRACES_EXPORTER": {"zipkin", "console", "otlp,none"},

		"OTEL_EXPORTER_OTLP_ENDPOINT":           {"collector:4318", "http://", "ftp://x", "://"},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":    {"collector"},
		"OTEL_EXPORTER_OTLP_PROTOCOL":           {"http", "GRPC"},
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL":    {"thrift"},
		"OTEL_EXPORTER_OTLP_TIMEOUT":            {"10s", "-1", "0"},
		"OTEL_EXPORTER_OTLP_COMPRESSION":        {"zstd"},
		"OTEL_EXPORTER_OTLP_INSECURE":           {"yes"},
		"OTEL_EXPORTER_OTLP_HEADERS":            {"authorization", "a=%zz", "=x"},
		"OTEL_EXPORTER_OTLP_CERTIFICATE":        {"/nowhere", empty},
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": {empty},
		"OTEL_EXPORTER_OTLP_CLIENT_KEY":         {empty},
		"OTEL_RESOURCE_ATTRIBUTES":              {"region", "a=b,c", "a=%"},
		"OTEL_TRACES_SAMPLER":                   {"sometimes", "0.5"},
		"OTEL_BSP_SCHEDULE_DELAY":               {"5s"},
		"OTEL_BSP_EXPORT_TIMEOUT":               {"x"},
		"OTEL_BSP_MAX_QUEUE_SIZE":               {"0", "many"},
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE":        {"-5"},
		"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT":       {"none"},
	} {
		for _, value := range wrong {
			_, err := otlp.On(from(map[string]string{name: value}))
			if err == nil {
				err = otlp.Check(from(map[string]string{name: value}))
			}
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%q: got %v, want an error that names it", name, value, err)
			}
		}
	}
	for _, value := range []string{"-0.1", "1.1", "half", "NaN"} {
		err := otlp.Check(from(map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": value}))
		if err == nil || !strings.Contains(err.Error(), "OTEL_TRACES_SAMPLER_ARG") {
			t.Errorf("a ratio of %s: got %v, want an error", value, err)
		}
	}
	// all at once, and no secret
	err := otlp.Check(from(map[string]string{"OTEL_TRACES_SAMPLER": "x", "OTEL_EXPORTER_OTLP_HEADERS": "hunter2", "OTEL_EXPORTER_OTLP_ENDPOINT": "user:hunter2@host"}))
	if err == nil || strings.Count(err.Error(), "\n") != 2 || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want three lines without the secret", err)
	}
}

func TestGoodValuesAreAccepted(t *testing.T) {
	t.Parallel()
	for name, good := range map[string][]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": {"http://x:4318", "https://collector.example/otlp", "http://[::1]:4317"}, "OTEL_EXPORTER_OTLP_PROTOCOL": {"grpc", "http/protobuf", "http/json"},
		"OTEL_EXPORTER_OTLP_HEADERS": {"authorization=Bearer%20x,tenant=1"}, "OTEL_EXPORTER_OTLP_TIMEOUT": {"2500"}, "OTEL_EXPORTER_OTLP_COMPRESSION": {"gzip", "none"},
		"OTEL_RESOURCE_ATTRIBUTES": {"region=eu,team=a%2Cb"}, "OTEL_TRACES_SAMPLER": {"always_on", "PARENTBASED_always_off", "traceidratio"}, "OTEL_BSP_MAX_QUEUE_SIZE": {"1"},
		"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": {"0", "100"},
	} {
		for _, value := range good {
			if err := otlp.Check(from(map[string]string{name: value})); err != nil {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		}
	}
}

func TestTheEndpointIsShownWithoutItsPassword(t *testing.T) {
	t.Parallel()
	got := otlp.Endpoint(from(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:hunter2@collector:4318/x?key=hunter2"}))
	if got != "https://collector:4318/x" {
		t.Errorf("got %s", got)
	}
}
