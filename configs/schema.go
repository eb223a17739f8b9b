package configs

import (
	_ "embed"
	"slices"
)

// SchemaFile is the name under which `lockstep init` writes the schema. Config files refer editors
// to it.
const SchemaFile = "lockstep.schema.json"

// go generate makes the file from the file types.
//
//go:embed lockstep.schema.json
var schema []byte

// Schema returns the JSON Schema (draft 7, which editors support) of a config file: every key with
// its type, bounds, default, description and an example. [Load] refuses, or warns of, everything
// that the schema refuses. The converse is not true, because a schema cannot express rules between
// values.
func Schema() []byte { return slices.Clone(schema) }
