package contract

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"lockstep/locks/redistest"
	"lockstep/scheduler/admin/web"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// serve runs a server of the API until the test ends, and returns its URL.
func serve(t *testing.T, o web.Options) string {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	server, err := web.New(o)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}
