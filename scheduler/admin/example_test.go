package admin_test

import (
	"context"
	"fmt"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// A worker serves the API and the page beside its work, until ctx ends.
func ExampleServer_Serve() {
	serve := func(ctx context.Context, l *ledger.Ledger, w *worker.Worker) error {
		listener, err := admin.Listen("127.0.0.1:9620", false) // or the next free port
		if err != nil {
			return err
		}
		server, err := admin.New(admin.Options{
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

// List the holders of locks, without any server.
func ExampleReader_Locks() {
	list := func(ctx context.Context, l *ledger.Ledger) error {
		all, err := admin.NewReader(l).Locks(ctx)
		if err != nil {
			return err
		}
		for _, lock := range all {
			for _, holder := range lock.Holders {
				fmt.Println(lock.Name, holder.Worker, holder.Purpose(), holder.Token)
			}
		}
		return nil
	}
	_ = list
}
