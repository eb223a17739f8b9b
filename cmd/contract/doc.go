// Package contract checks the HTTP API against the OpenAPI document that each server makes of
// itself. Its tests validate the document, and each request and reply against it, with a validator
// that others maintain. They find a reply, a parameter or a shape that no request shows. They also
// generate a client from the document of a real worker, and let it talk to that worker.
//
// It is a module of its own, so that the validator and the generator stay out of lockstep's go.mod.
package contract
