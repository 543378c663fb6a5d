# `make help` lists the targets. Tools are pinned in tools/*/go.mod and built by
# Go itself; nothing has to be installed but Go, make and what scripts/test-deps
# asks for.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The version of the next release, of all parts: make release-version writes it.
RELEASE := $(shell cat VERSION)
LDFLAGS := -X main.version=$(VERSION)
# Without gRPC's own trace pages, which nobody serves, and the HTML templates for them: 0.8 MB less in memory.
GO_BUILD := CGO_ENABLED=0 go build -trimpath -tags grpcnotrace

# All is built without C, as the product is, so that linters, tests and tools share what they compile. Only the race
# detector needs C.
export CGO_ENABLED ?= 0

LINT := go tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint
GOTESTSUM := go tool -modfile=$(CURDIR)/tools/test/go.mod gotestsum
# Builds it, and says where it is: for a run of which it itself has not the settings.
GOTESTSUM_PATH := go tool -n -modfile=$(CURDIR)/tools/test/go.mod gotestsum

# Where benchmarks are: a module of its own, so that the peers it measures are
# not dependencies of the product.
BENCH := bench
MODULES := . $(BENCH) torture e2e tools/helm tools/image tools/lint tools/mutate tools/proto tools/release tools/simulate tools/test

PREFIX ?= /usr/local

# The container image: its name, and what it is made for.
IMAGE ?= locksidecar/locksidecar:$(VERSION)
ARCHS ?= $(shell go env GOARCH)
# Times in the image are those of the last commit, so that it can be made again.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
REVISION := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)

# What one package's tests may take, on a slow machine.
TEST_TIMEOUT ?= 25m
# How many packages are tested at the same time. Most of a test's time is a wait for a
# server or a lease, so that may be more than there are processors.
TEST_PACKAGES ?= 4
# make test has three runs side by side, of so many packages each.
TEST_PACKAGES_WITH_RACE ?= 4
TEST_PACKAGES_WITHOUT_RACE ?= 2
TEST_PACKAGES_END_TO_END ?= 2
# Of how many of these the tests run at a time. The others are built, and wait. More would only take the processors from
# each other: what looks again and again until something is there then does so for longer.
TEST_PLACES ?= 5
TEST_IN_TURN := -exec '$(CURDIR)/scripts/turn $(CURDIR)/bin/turns $(TEST_PLACES)'
# How often tests that failed are run again, when all others are over; 0: never.
TEST_RERUNS ?= 1
# By default a program with the race detector sleeps for a second before it exits, so that other goroutines can still
# report a race. Our tests leave no goroutines behind (goleak), and some start such programs by the dozen.
export GORACE ?= atexit_sleep_ms=0
# make lint vets all of this, in every module, and tests do not vet it once more.
TEST := go test -vet=off -count=1 -timeout $(TEST_TIMEOUT)
# The suite of a store runs on several servers that one driver serves, and some tests take thousands of locks, or hundreds
# of MiB. Where the race detector watches the suite on one of the servers, and without these tests, it sees the same code. On
# the others, and with more of all, it would see no more, for twice the processor time. Nor would it in tests that measure what
# thousands take, which it only makes slower, and in those that let apps do at random in fake time what others do beside it.
# make test runs these without it, and make test-full with it.
WITHOUT_RACE := ^TestConformance$$/^(Redis_Cluster_with_replicas|Ensemble|CuratorLayout|Cluster|MySQL|PgBouncer)$$|^TestConformance$$/^(Redis|MariaDB|PostgreSQL)$$/^(Mass|Crowd)|^Test(VeryManyStreamsThatReadNothing|EndOfAProcessWithManyStreamsThatWereCutOff|MemoryOfStreamsThatReadNothing|MemoryOfUnreadAnswersOverGRPC)$$|^Test(ManyWaitersOfOneSidecar|ManyReadersOfOneSidecar|MemoryOfAHold|StepsAreBounded|ScriptsKeepRedisBriefly|ManyCallersTakeTheShortWay|Worlds|TurnsInWorlds|BackupsInWorlds|ProofAgainstPauses|NumbersAreUsedAgain)$$
# The longest first.
HAVE_WITHOUT_RACE := $(addprefix ./backends/,zklock sqllock/mysql redislock sqllock/postgres caslock/etcd caslock zklock/zksession mysqllock/rows mysqllock/shedlock shards) ./internal/promptio ./localapi
# Their tests run programs that are built without the race detector, as people have them: sidecars, clients in other languages,
# what the pages show, spin. The detector would see little but the test's own goroutines. So make test runs these without it,
# and make test-full with it.
END_TO_END := ./examples ./cmd/locksidecar ./internal/docstest ./model
# With the race detector: all others. What takes longest starts first, so that no long one runs alone in the end.
WITH_RACE = $(addprefix ./,$(addprefix backends/,sqllock/postgres sqllock/mysql redislock zklock caslock caslock/etcd) \
	internal/testengine localapi $(addprefix backends/,mysqllock/shedlock mysqllock/rows shards embedded zklock/zksession mysqllock backendtest leasekit) \
	client session internal/simulation api/locksidecar/v1) \
	$$(go list ./... | grep -vxF $(patsubst ./%,-e github.com/locksidecar/locksidecar/%,$(END_TO_END)))
# All of them, for make test-fast, so that no long one runs alone in the end.
LONGEST_FIRST := $(addprefix ./,cmd/locksidecar $(addprefix backends/,sqllock/mysql redislock sqllock/postgres zklock) ...)
# What scripts/run-tests needs: it runs tests, and those that failed once more.
RUN_TESTS = mkdir -p bin && GOTESTSUM="$$($(GOTESTSUM_PATH))" RERUNS=$(TEST_RERUNS)
# What make test-busy runs, how often, and the arguments of stress-ng beside it. It takes no results of a run before it (-count).
BUSY ?= test-fast
TIMES ?= 3
STRESS ?= --cpu 8
# What each fuzz target gets.
FUZZ_TIME ?= 10s

# What is tortured, for how long, by which seed (0: any), and where the histories and
# logs of a failure go.
STORE ?= .*
FOR ?= 2m
SEED ?= 0
# How long each store is tortured in make test, where several are side by side, and most of the time of each is a wait.
TORTURE_FOR ?= 20s
KEEP ?= $(CURDIR)/bin/torture

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: VERSION=%s TEST_TIMEOUT=%s FUZZ_TIME=%s ARGS=… (run, bench)\n' '$(VERSION)' '$(TEST_TIMEOUT)' '$(FUZZ_TIME)'

##@ Use it
.PHONY: run
run: build ## Build it and start the sidecar on the embedded store (ARGS="--store redis://…")
	@exec ./bin/locksidecar serve $(ARGS)

.PHONY: build
build: ## Build bin/locksidecar
	$(GO_BUILD) -ldflags '$(LDFLAGS)' -o bin/locksidecar ./cmd/locksidecar

.PHONY: install
install: build ## Install it as PREFIX/bin/locksidecar (PREFIX=/usr/local)
	install -D -m 0755 bin/locksidecar '$(DESTDIR)$(PREFIX)/bin/locksidecar'

.PHONY: image
image: ## Make bin/image.tar, the container image, and bin/image.spdx.json (ARCHS="amd64 arm64" PUSH=registry/name:tag)
	@for arch in $(ARCHS); do \
		GOOS=linux GOARCH=$$arch $(GO_BUILD) -ldflags '-s -w $(LDFLAGS)' -o bin/linux-$$arch/locksidecar ./cmd/locksidecar; \
	done
	@go -C tools/image run . $(foreach arch,$(ARCHS),-binary $(arch)=$(CURDIR)/bin/linux-$(arch)/locksidecar) \
		-tag '$(IMAGE)' -version '$(VERSION)' -revision '$(REVISION)' -created $(SOURCE_DATE_EPOCH) \
		-licence $(CURDIR)/LICENSE -sbom $(CURDIR)/bin/image.spdx.json -out $(CURDIR)/bin/image.tar $(if $(PUSH),-push '$(PUSH)')

.PHONY: image-test
image-test: ## Test the tool that makes the image
	cd tools/image && $(TEST) ./...

# What makes and uses packages of all languages.
PACKERS := git node npm javac mvn import:ensurepip cargo

.PHONY: release
release: ## Make dist/: programs, packages, image, chart, clients, and checksums (PARTS="python node" SIGN=key of GnuPG)
	@scripts/test-deps $(PACKERS)
	@$(MAKE) image VERSION=v$(RELEASE) IMAGE=locksidecar/locksidecar:$(RELEASE) ARCHS="amd64 arm64"
	@go -C tools/release run . -root $(CURDIR) -revision $(REVISION) -created $(SOURCE_DATE_EPOCH) -sign '$(SIGN)' $(PARTS)

.PHONY: examples
examples: build ## Watch the examples: loans, a stock, withdrawals, cron; each says what it has proven
	@scripts/test-deps
	@go run ./examples/show

##@ Check it
TEST_RESULTS := bin/test.json bin/test-without-race.json bin/test-end-to-end.json

.PHONY: test
test: test-deps ## Run all tests, nearly all with the race detector, on real servers too
	@rm -f $(TEST_RESULTS)
	@status=0; $(MAKE) -j 4 test-with-race test-end-to-end test-others || status=$$?; \
		scripts/test-summary $(TEST_RESULTS); exit $$status

# Most of the time of each part of make test is a wait, so they run side by side, but for these two. Tests of stores have no
# torture of all stores beside them for long.
.PHONY: test-others
test-others:
	@$(MAKE) test-tools
	@$(MAKE) test-without-race

.PHONY: test-tools
test-tools:
	@echo 'The torture of each store, $(TORTURE_FOR) each, beside it the tests of the tools; each prints when it is over'
	@$(MAKE) --output-sync=target torture-short bench-build image-test release-tool-test chart-test mutate-test e2e-test

.PHONY: test-with-race
test-with-race: test-deps
	@$(RUN_TESTS) CGO_ENABLED=1 scripts/run-tests bin/test.json "$(WITH_RACE)" -race -vet=off -count=1 -p $(TEST_PACKAGES_WITH_RACE) $(TEST_IN_TURN) -timeout $(TEST_TIMEOUT) -skip '$(WITHOUT_RACE)'

.PHONY: test-without-race
test-without-race: test-deps
	@$(RUN_TESTS) scripts/run-tests bin/test-without-race.json '$(HAVE_WITHOUT_RACE)' -vet=off -count=1 -p $(TEST_PACKAGES_WITHOUT_RACE) $(TEST_IN_TURN) -timeout $(TEST_TIMEOUT) -run '$(WITHOUT_RACE)'

.PHONY: test-end-to-end
test-end-to-end: test-deps
	@$(RUN_TESTS) scripts/run-tests bin/test-end-to-end.json '$(END_TO_END)' -vet=off -count=1 -p $(TEST_PACKAGES_END_TO_END) $(TEST_IN_TURN) -timeout $(TEST_TIMEOUT)

.PHONY: test-full
test-full: test-deps ## Run the tests of large numbers with the whole of them, and the race detector where make test has none
	CGO_ENABLED=1 LOCKSIDECAR_TEST_FULL=1 go test -race -vet=off -count=1 -p 1 -timeout $(TEST_TIMEOUT) -run 'TestConformance/.*/(Mass|Crowd)|TestConformance/(Mass|Crowd)' ./backends/...
	CGO_ENABLED=1 go test -race -vet=off -count=1 -p 1 -timeout $(TEST_TIMEOUT) -run '$(WITHOUT_RACE)' $(HAVE_WITHOUT_RACE)
	CGO_ENABLED=1 LOCKSIDECAR_TEST_FULL=1 go test -race -vet=off -count=1 -timeout $(TEST_TIMEOUT) -run '^Test(OneConnectionIsServedInOrder|Withdrawals)$$' ./cmd/locksidecar
	CGO_ENABLED=1 go test -race -vet=off -count=1 -p 1 -timeout $(TEST_TIMEOUT) -skip '^TestWithdrawals$$' $(END_TO_END)

.PHONY: docs-test
docs-test: ## Run what README and docs show, and compare them with the program and the chart (a part of test)
	$(TEST) ./internal/docstest

.PHONY: chart-test
chart-test: ## Test the Helm charts, without a cluster and without helm
	cd tools/helm && $(TEST) ./...

.PHONY: test-fast
test-fast: ## Run the short tests without the race detector
	@$(RUN_TESTS) scripts/run-tests bin/test-fast.json '$(LONGEST_FIRST)' -short -p $(TEST_PACKAGES) -timeout $(TEST_TIMEOUT)

.PHONY: test-busy
test-busy: test-deps ## Run test-fast three times beside stress-ng, until one fails (BUSY=test TIMES=3 STRESS="--cpu 8")
	@scripts/test-deps stress-ng
	@STRESS='$(STRESS)' GOFLAGS="$${GOFLAGS:-} -count=1" scripts/busy $(TIMES) $(MAKE) $(BUSY)

.PHONY: torture
torture: test-deps ## Break apps, sidecars, roads and stores at random (STORE=Redis FOR=2m SEED=0)
	cd torture && go test -v -count=1 -timeout 0 -run 'TestTorture/^($(STORE))$$' . -long -for=$(FOR) -seed=$(SEED) -keep='$(KEEP)'

.PHONY: torture-breaks
torture-breaks: test-deps ## See that the torture finds each law that a sidecar is made to break
	cd torture && go test -v -count=1 -timeout 0 -run 'TestBreaksAreFound' . -long -keep='$(KEEP)'

.PHONY: torture-short
torture-short: test-deps ## Torture each store for some seconds, seven side by side, a part of make test
	cd torture && $(TEST) ./app ./history ./schedule
	cd torture && $(TEST) . -for=$(TORTURE_FOR) -keep='$(KEEP)'

.PHONY: model
model: ## Check the models of the protocol with spin, and that each law can be broken
	@scripts/test-deps spin gcc
	LOCKSIDECAR_TEST_SPIN=required go test -count=1 -timeout $(TEST_TIMEOUT) ./model

.PHONY: simulate
simulate: ## Simulate worlds of sidecars and apps without end, or WORLDS=10000 of them, or one again (WORLD=7)
	@cd tools/simulate && go run . $(if $(WORLD),-seed $(WORLD),-seeds $(or $(WORLDS),0)) $(ARGS)

.PHONY: mutate
mutate: ## Change the code in one place at a time: which change does no test see? (PKG=./lock/... BASE=main)
	@mkdir -p bin && go -C tools/mutate build -o $(CURDIR)/bin/mutate . && bin/mutate $(if $(BASE),-diff $(BASE)) $(ARGS) $(or $(PKG),./...)

.PHONY: release-test
release-test: ## Install what is in dist/ into empty projects, and take a lock with each
	@scripts/test-deps $(PACKERS) lintian
	cd tools/release && go test -v -count=1 -timeout 60m ./disttest -dist $(CURDIR)/dist

.PHONY: release-tool-test
release-tool-test:
	cd tools/release && $(TEST) .

.PHONY: mutate-test
mutate-test:
	cd tools/mutate && $(TEST) ./...

.PHONY: test-deps
test-deps: ## See to it that the tests find what they need; install it where that may be done
	@scripts/test-deps

.PHONY: lint
lint: ## Run the linters on Go and proto files
	$(LINT) run ./...
	cd $(BENCH) && $(LINT) run --config ../.golangci.yml ./...
	cd tools/image && $(LINT) run --config ../../.golangci.yml ./...
	cd tools/helm && $(LINT) run --config ../../.golangci.yml ./...
	cd tools/mutate && $(LINT) run --config ../../.golangci.yml ./...
	cd tools/release && $(LINT) run --config ../../.golangci.yml ./...
	cd tools/simulate && $(LINT) run --config ../../.golangci.yml ./...
	go -C tools/release tool actionlint $(CURDIR)/.github/workflows/*.yml
	cd e2e && $(LINT) run --config ../.golangci.yml ./...
	cd torture && $(LINT) run --config ../.golangci.yml ./...
	scripts/proto.sh lint
	scripts/proto.sh breaking

.PHONY: e2e
e2e: ## Test the chart with real pods: on KUBECONFIG, or on a cluster made for it (CLUSTER=local)
	@scripts/e2e $(ARGS)

.PHONY: e2e-test
e2e-test: ## Test what runs the tests for a cluster
	cd e2e && $(TEST) ./cluster

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZ_TIME
	scripts/fuzz $(FUZZ_TIME)

.PHONY: bench-build
bench-build: ## Build the benchmarks and run their own tests
	cd $(BENCH) && $(TEST) ./...

.PHONY: bench
bench: build ## Measure it beside its peers, on each store
	cd $(BENCH) && go run . $(ARGS)

.PHONY: bench-compare
bench-compare: ## Measure it beside another commit, in turns in one run (BASE=commit ARGS="-store redis -rounds 5")
	cd $(BENCH) && go run . compare -base '$(BASE)' $(ARGS)

.PHONY: bench-clients
bench-clients: build ## Measure the clients in Python, Node.js and Java beside Go's and beside bare sockets, in turns in one run (ARGS="-rounds 20")
	LOCKSIDECAR_BINARY='$(CURDIR)/bin/locksidecar' go run ./examples/pace $(ARGS)

##@ Change it
.PHONY: fmt
fmt: ## Format Go files
	$(LINT) fmt ./... ./$(BENCH)/... ./torture/... ./e2e/... ./tools/image/... ./tools/helm/... ./tools/mutate/... ./tools/release/... ./tools/simulate/...

.PHONY: generate
generate: ## Generate code from the proto files, the chart's table of values, and rules for Prometheus
	scripts/proto.sh generate
	cd tools/helm && go run ./valuesdoc ../../deploy/helm/locksidecar
	cd tools/helm && go run ./rules ../../deploy/helm/locksidecar ../../deploy/prometheus/locksidecar.rules.yaml

.PHONY: release-version
release-version: ## Write the version of the next release into all that has it (V=1.2.3)
	@go -C tools/release run . -root $(CURDIR) -set-version '$(V)'

.PHONY: chart-schemas
chart-schemas: ## Write the schemas that charts are held against; downloads several versions of Kubernetes
	cd tools/helm && go run ./k8sschema ../../deploy/helm/schemas

.PHONY: generate-check
generate-check: ## Fail when what is generated is not what is checked in
	scripts/proto.sh check

.PHONY: tidy
tidy: ## Tidy the modules
	for m in $(MODULES); do (cd $$m && go mod tidy); done

# .ci/run leaves it out: go mod tidy also reads the modules that the tests of our libraries import, which nothing else
# downloads. The workflow in .github has it.
.PHONY: tidy-check
tidy-check: ## Fail when a module is not tidy
	for m in $(MODULES); do (cd $$m && go mod tidy -diff); done

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist tools/proto/bin
