# What people do with this tree. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# The version of the core; a release sets it to what its tag says.
VERSION ?= 0.1.0-dev
# Folders of the Go modules: each is built, tested and checked for itself.
MODULES := . sdk $(patsubst %/go.mod,%,$(wildcard examples/*/go.mod))
# Every folder of a plugin has a main package and its own version.
PLUGINS := $(patsubst plugins/%/VERSION,%,$(wildcard plugins/*/VERSION))

BIN := bin
DIST := dist
GOBUILD := CGO_ENABLED=0 go build -trimpath

# Pinned tools, each built once into a folder of its version, out of the clone.
TOOLS := $(or $(HOME),/tmp)/.cache/patchbay/tools
BUF := $(TOOLS)/buf@v1.75.0/buf
PROTOC_GEN_GO := $(TOOLS)/protoc-gen-go@v1.36.12/protoc-gen-go
PROTOC_GEN_GO_GRPC := $(TOOLS)/protoc-gen-go-grpc@v1.6.2/protoc-gen-go-grpc
GOLANGCI_LINT := $(TOOLS)/golangci-lint@v2.15.0/golangci-lint
GOTESTSUM := $(TOOLS)/gotestsum@v1.13.0/gotestsum

PACKAGE_buf := github.com/bufbuild/buf/cmd/buf
PACKAGE_protoc-gen-go := google.golang.org/protobuf/cmd/protoc-gen-go
PACKAGE_protoc-gen-go-grpc := google.golang.org/grpc/cmd/protoc-gen-go-grpc
PACKAGE_golangci-lint := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
PACKAGE_gotestsum := gotest.tools/gotestsum

# How long one fuzz test runs: seconds in `make test`, minutes in `make soak`.
FUZZTIME ?= 5s
SOAK_FUZZTIME ?= 10m

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: build ## run the main job on this machine: no root, no Consul; Ctrl-C ends it
	@$(GOBUILD) -o $(BIN)/demo ./test/demo
	@exec $(BIN)/demo

.PHONY: demo-consul
demo-consul: build ## the same with a real Consul, which is built once (5 minutes); Ctrl-C ends it
	@$(GOBUILD) -o $(BIN)/demo ./test/demo
	@exec $(BIN)/demo -consul "$$(test/consul/build.sh)"

.PHONY: build
build: go-version ## build the core and the plugins into bin/
	@install -d -m 0755 $(BIN) $(BIN)/plugins
	@echo "building the core and the plugins into $(BIN)/ (minutes the first time, seconds later)"
	@$(GOBUILD) -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/patchbay ./core/cmd/patchbay
	@chmod 0755 $(BIN)/patchbay
	@for name in $(PLUGINS); do \
		version=$$(cat plugins/$$name/VERSION); \
		rm -f $(BIN)/plugins/patchbay-dataplane-$${name}_v*; \
		file=$(BIN)/plugins/patchbay-dataplane-$${name}_v$$version; \
		$(GOBUILD) -ldflags "-s -w -X main.version=$$version" -o $$file ./plugins/$$name; \
		chmod 0755 $$file; \
	done

# Where root's agent looks for its plugins; DESTDIR stages a package.
PREFIX ?= /usr/local
PLUGIN_DIR := /usr/lib/patchbay/plugins

.PHONY: install
install: ## install what `make build` has made: PREFIX/bin/patchbay, /usr/lib/patchbay/plugins
	@[ -x $(BIN)/patchbay ] || { echo "install: nothing is built yet: run make build first"; exit 1; }
	@install -d -m 0755 $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PLUGIN_DIR)
	@install -m 0755 $(BIN)/patchbay $(DESTDIR)$(PREFIX)/bin/
	@install -m 0755 $(BIN)/plugins/* $(DESTDIR)$(PLUGIN_DIR)/
	@echo "installed $(DESTDIR)$(PREFIX)/bin/patchbay and plugins in $(DESTDIR)$(PLUGIN_DIR)/"

.PHONY: test
test: go-version $(GOTESTSUM) ## run all tests, installing what they need (as root); the one command of CI
	@test/tools/packages.sh
	@consul=$$(test/consul/build.sh); echo "consul: the tests run $$consul"
	@GOTESTSUM=$(GOTESTSUM) BUF=$(BUF) FUZZTIME=$(FUZZTIME) test/tools/test.sh $(MODULES)

.PHONY: fuzz
fuzz: go-version ## run every fuzz test for FUZZTIME (5s)
	@test/tools/fuzz.sh $(FUZZTIME) $(MODULES)

.PHONY: soak
soak: go-version $(GOTESTSUM) ## the long forms: random histories by the ten thousand, each fuzz test for SOAK_FUZZTIME (10m)
	@test/tools/packages.sh
	@consul=$$(test/consul/build.sh); echo "consul: the tests run $$consul"
	@GOTESTSUM=$(GOTESTSUM) BUF=$(BUF) FUZZTIME=$(SOAK_FUZZTIME) test/tools/test.sh $(MODULES)
	@go test ./core/dispatch -run TestRandomHistories -count=1 -timeout 2h -random.runs=50000
	@go test ./core/catalog -run Random -count=1 -timeout 2h -random-steps 1000000

.PHONY: bench
bench: build ## measure beside haproxy, nginx and io.Copy (root); BENCH_FULL=1 takes longer, BENCH="-only=newconn" less
	@test/tools/packages.sh bench
	@$(GOBUILD) -o $(BIN)/bench ./test/bench
	@exec $(BIN)/bench $(BENCH)

.PHONY: lint
lint: go-version format vet proto-lint $(GOLANGCI_LINT) ## gofmt, go vet, golangci-lint, buf lint
	@for module in $(MODULES); do \
		echo "golangci-lint in $$module"; \
		(cd $$module && $(GOLANGCI_LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...); \
	done

.PHONY: format
format: ## check that every Go file is formatted
	@files=$$(gofmt -l .); \
	if [ -n "$$files" ]; then echo "not formatted (run gofmt -w):"; echo "$$files"; exit 1; fi

.PHONY: vet
vet: ## go vet in every module
	@for module in $(MODULES); do (cd $$module && go vet ./...); done

.PHONY: proto
proto: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## generate the Go code of the wire contract
	@cd sdk/proto && PATH=$(call toolpath):$$PATH $(BUF) generate

.PHONY: proto-check
proto-check: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## fail when the generated code differs from the .proto files
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	(cd sdk/proto && PATH=$(call toolpath):$$PATH $(BUF) generate -o "$$dir"); \
	for file in $$(cd "$$dir" && find . -name '*.go'); do \
		diff -u "sdk/proto/$$file" "$$dir/$$file" || { echo "sdk/proto: run make proto"; exit 1; }; \
	done

.PHONY: proto-lint
proto-lint: proto-check $(BUF) ## buf lint, and buf breaking against the last release
	@cd sdk/proto && $(BUF) lint
	@tag=$$(git tag --list 'v[0-9]*' --sort=-v:refname | head -n 1); \
	if [ -z "$$tag" ]; then \
		echo "buf breaking: there is no release tag yet, nothing to compare with"; \
	else \
		echo "buf breaking against $$tag"; \
		cd sdk/proto && $(BUF) breaking --against "../../.git#tag=$$tag,subdir=sdk/proto"; \
	fi

.PHONY: package
package: go-version ## make the release archives in dist/, with checksums; the same tree gives the same bytes
	@VERSION=$(VERSION) PLUGINS="$(PLUGINS)" test/tools/package.sh $(DIST)

.PHONY: tools
tools: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) $(GOLANGCI_LINT) $(GOTESTSUM) ## build the pinned tools into ~/.cache/patchbay/tools

.PHONY: clean
clean: ## remove what was built here (the tools stay)
	@rm -rf $(BIN) $(DIST)

.PHONY: go-version
go-version:
	@test/tools/go-version.sh

toolpath = $(dir $(PROTOC_GEN_GO)):$(dir $(PROTOC_GEN_GO_GRPC))

# A tool's folder is named after it and its version: buf@v1.75.0/buf.
$(TOOLS)/%:
	@name='$(notdir $@)'; version='$(lastword $(subst @, ,$(patsubst %/,%,$(dir $@))))'; \
	echo "building $$name $$version (once)"; \
	GOBIN='$(dir $@)' GOFLAGS= go install "$(PACKAGE_$(notdir $@))@$$version"
