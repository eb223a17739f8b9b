package configs

import (
	_ "embed"
	"slices"
)

// SchemaFile is the name under which `lockstep init` writes the schema, and config files point editors to it.
const SchemaFile = "lockstep.schema.json"

// The file is written by go generate from the file types.
//
//go:embed lockstep.schema.json
var schema []byte

// Schema returns the JSON Schema (draft 7, which editors know) of a config file: every key with its type, bounds,
// default, description and an example. What it refuses, [Load] refuses or warns of. It cannot say all that Load says,
// as rules between values need more than a schema.
func Schema() []byte { return slices.Clone(schema) }
