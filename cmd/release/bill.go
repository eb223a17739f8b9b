package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// bill writes the bill of materials of a program: the modules that its linker recorded, so it names
// what is in the program, and not what go.mod allows.
func (s *source) bill(program, path string) (err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read the modules of %s: %w", program, err)
	}
	own := cyclonedx.Component{Type: cyclonedx.ComponentTypeApplication, BOMRef: "lockstep", Name: "lockstep", Version: s.version}
	components := []cyclonedx.Component{{
		Type: cyclonedx.ComponentTypeLibrary, BOMRef: "pkg:golang/std@" + info.GoVersion, Name: "std", Version: info.GoVersion,
		PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		url := "pkg:golang/" + module.Path + "@" + module.Version
		component := cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: url, Name: module.Path, Version: module.Version, PackageURL: url}
		// h1 is a SHA-256 over the names and hashes of the module's files
		if hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(hash) == 32 {
			component.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(hash)}}
		}
		components = append(components, component)
	}
	var refs []string
	for _, component := range components {
		refs = append(refs, component.BOMRef)
	}
	bom := cyclonedx.NewBOM() // without a serial number, which would be random
	bom.Metadata = &cyclonedx.Metadata{Timestamp: s.date.Format(time.RFC3339), Component: &own}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: own.BOMRef, Dependencies: &refs}}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}
