// Package client is a client of the API. TestAGeneratedClientTalksToAWorker generates it from the
// document of a worker, each time that it runs: the tree has only this file.
package client

import _ "github.com/oapi-codegen/runtime" // the generated code imports it, and go.mod must have it
