// Package fakes has the data with which admin and admin/web are tested: a [Fake], which is a ledger
// and a lock space in memory, and a [Stage], which is a real ledger in Redis. It does not import
// admin, so that tests inside that package can use it.
package fakes
