package admin_test

import (
	"context"
	"fmt"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

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
