package web_test

import (
	"context"
	"fmt"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/web"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// A worker serves the API and the page beside its work, until ctx ends.
func ExampleServer_Serve() {
	serve := func(ctx context.Context, l *ledger.Ledger, w *worker.Worker) error {
		listener, err := web.Listen("127.0.0.1:9620", false) // or the next free port
		if err != nil {
			return err
		}
		server, err := web.New(web.Options{
			Reader: admin.NewReader(l), Unready: w.Unready, Worker: func() string { return string(w.ID()) },
		})
		if err != nil {
			return err
		}
		fmt.Println("http://" + listener.Addr().String())
		return server.Serve(ctx, listener)
	}
	_ = serve
}
