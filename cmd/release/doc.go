// Command release builds what users install: for each platform an archive with the program, its
// manual pages, completions and files for systemd, and packages for Debian and Red Hat, all in one
// folder with an SBOM of each program and a file of checksums.
//
//	make release
//	go run . -o ../../bin/release -platforms linux/amd64
//
// The result is reproducible: the same commit makes the same bytes, with the same version of Go, on
// any machine and in any folder. The time of the commit dates everything, and files with an order
// are sorted. A checkout with changes is refused, unless -dirty is given, because no commit would
// name its program.
//
// Files:
//
//	lockstep_VERSION_OS_ARCH.tar.gz    the program and the files around it
//	lockstep_..._ARCH.deb, .rpm        for Linux; they start no worker, which needs a config first
//	lockstep_VERSION_OS_ARCH.cdx.json  CycloneDX: the modules in the program
//	SHA256SUMS                         of all of these
//
// It is a module of its own, so that what only a release needs stays out of lockstep's go.mod.
package main
