# Tasks for working on lockstep. `make` alone prints the targets.

GO       ?= go
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
BENCH    ?= .
PKG      ?= ./...
FUZZTIME ?= 30s
SOAK     ?= 100

# RUN= limits a test target to the tests of that name; 'TestName/Case' and 'TestFault.*' work, too.
# Only the command line sets it: a variable RUN in the environment must not shrink what CI tests.
RUN :=
ONE := $(if $(RUN),-count=1 -run '^$(RUN)$$')

# Programs that the tests need besides Go, as command:package,package. The race detector needs a C
# compiler to link.
NEEDED := redis-server:redis-server gcc:gcc,libc6-dev

.DEFAULT_GOAL := help
.PHONY: help build demo test test-short test-browser test-contract test-deploy upgrade release check tidy-check fmt-check lint fmt generate picture bench bench-go soak fuzz needed

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# All targets compile alike, so that each finds in the cache what another compiled. -trimpath is for
# releases, whose bytes must not depend on the folder. Without cgo, no dynamic loader has to run, so
# each command's guard takes 30 % less CPU time to start.
export GOFLAGS := $(GOFLAGS) -trimpath
build lint test-contract test-deploy bench: export CGO_ENABLED = 0

build: ## build bin/lockstep
	$(GO) build -o bin/lockstep ./cmd/lockstep

demo: ## three workers on an embedded Redis, with a page; ARGS= passes more flags
	$(GO) run ./cmd/lockstep demo $(ARGS)

# LOCKSTEP_REDIS_SERVER=FILE runs the tests on that redis-server or valkey-server instead of the one
# in PATH. Two packages at a time, on any number of cores: some tests start dozens of processes.
# Lint vets the same packages.
test: needed ## all tests, with the race detector; RUN=TestName PKG=./locks runs one
	$(GO) test -race -vet=off -p 2 -timeout 45m $(ONE) $(PKG)

test-short: needed ## only the fast tests, without the race detector
	$(GO) test -short $(ONE) $(PKG)

# A module of its own, which `make test` does not see.
test-browser: needed ## the pages in a real browser, if chromium is installed
	cd cmd/browser && $(GO) test -race -timeout 20m $(ONE) ./...

# A module of its own, too. It builds the command, which the cache of test results does not notice.
test-contract: needed ## the HTTP API against its OpenAPI document, and a generated client
	cd cmd/contract && $(GO) test -count=1 -timeout 20m $(ONE) ./...

# Modules of their own, too. The first run builds helm and nfpm, which takes minutes.
test-deploy: ## the Helm chart, and that a release is reproducible
	cd configs/deploy/helm && $(GO) test -timeout 30m $(ONE) ./...
	cd cmd/release && $(GO) test -timeout 30m $(ONE) ./...

# FROM names another commit than cmd/release/last. The test prints its seed, and SEED repeats it.
upgrade: needed ## roll this build out over the last release and back, under kills; FOR=1m each way, SEED=N FROM=COMMIT
	LOCKSTEP_UPGRADE_FOR=$(or $(FOR),1m) LOCKSTEP_UPGRADE_SEED=$(SEED) LOCKSTEP_UPGRADE_FROM=$(FROM) \
	$(GO) test -count=1 -timeout 0 -v -run '^TestFaultLastReleaseBesideThisBuild$$' ./cmd

release: ## archives, packages, SBOMs and checksums of a commit in bin/release; ARGS= passes flags
	cd cmd/release && $(GO) run . $(ARGS)

check: tidy-check fmt-check lint build test test-browser test-contract test-deploy ## what CI runs: tidy go.mod, format, lint, build, all tests

# It loads the packages as make test compiles them, with the race detector. The two tests only read
# files, which takes ten times as long under the race detector.
lint: needed ## golangci-lint by .golangci.yml, the prose of all texts, types on other systems
	$(GO) run -exec "env CGO_ENABLED=1 'GOFLAGS=$(GOFLAGS) -race'" $(LINT) run
	$(GO) test ./cmd/prose_test.go ./cmd/systems_test.go

fmt: ## format the code
	gofmt -w .

generate: ## generate schema and reference from configs/file.go, the READMEs' promise from cmd/promise.md
	$(GO) generate ./configs ./cmd

picture: ## make cmd/timeline.png, the README's picture, from a demo that runs in another terminal
	cd cmd/browser && $(GO) run . $(ARGS)

# The runs of commands have this program's guards.
bench: needed ## compare locks with other libraries; select with ARGS='-short -run pairs'
	cd cmd/bench && $(GO) run . $(ARGS)

bench-go: needed ## our own benchmarks; select with BENCH=REGEXP and PKG=./locks
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

# Two long tests. With FOR, a fleet of real workers runs under random faults, as in
# TestPromiseHoldsUnderRandomFaults; RUN=TestName chooses another test that takes as long as FOR.
# FED=1 always keeps more runs outstanding than the fleet has slots.
soak: needed ## random histories, SOAK (100) times as long; FOR=10m SEED=N FED=1: workers under faults
ifdef FOR
	LOCKSTEP_SOAK_FOR=$(FOR) LOCKSTEP_SOAK_SEED=$(SEED) LOCKSTEP_SOAK_FED=$(FED) $(GO) test -count=1 -timeout 0 -v -run '^$(or $(RUN),TestPromiseHoldsUnderRandomFaults)$$' ./cmd
else
	LOCKSTEP_SOAK=$(SOAK) $(GO) test -count=1 -timeout 0 $(PKG)
endif

fuzz: needed ## each fuzz test for FUZZTIME (30s)
	@grep -rE '^func Fuzz' --include='*_test.go' . | sed -E 's/^(.*)\/[^/]*:func (Fuzz[A-Za-z0-9_]*).*/\1 \2/' | sort | \
	while read -r dir name; do \
		echo "$$dir $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime '$(FUZZTIME)' "$$dir" || exit 1; \
	done

tidy-check:
	$(GO) mod tidy -diff
	cd cmd/browser && $(GO) mod tidy -diff
	cd cmd/contract && $(GO) mod tidy -diff
	cd cmd/release && $(GO) mod tidy -diff
	cd configs/deploy/helm && $(GO) mod tidy -diff

fmt-check:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted, run make fmt:"; echo "$$files"; exit 1; fi

# Installs the programs in NEEDED that the machine lacks. The package may start redis-server as a
# service; no test talks to it.
needed:
	@missing=; \
	for need in $(NEEDED); do \
		command -v "$${need%%:*}" >/dev/null || missing="$$missing $$(echo "$${need##*:}" | tr , " ")"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	sudo=; \
	if [ "$$(id -u)" != 0 ]; then sudo=sudo; fi; \
	if ! command -v apt-get >/dev/null || { [ -n "$$sudo" ] && ! command -v sudo >/dev/null; }; then \
		echo "the tests need these packages, by their Debian names, and only apt-get as root or with sudo can install them here:$$missing" >&2; \
		exit 1; \
	fi; \
	echo "installing$$missing"; \
	$$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing
