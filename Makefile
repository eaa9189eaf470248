# `make help` lists the targets. Longer jobs are scripts in hack/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CLUSTER := hack/cluster/cluster.sh
CHART := charts/redlock-operator

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  \033[1mmake %-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  On a cluster of your own: export KUBECONFIG=... USE_EXISTING_CLUSTER=1 (see hack/cluster/README.md)'

.PHONY: demo
demo: ## From nothing to a lock acquired, handed over and released on a local Kubernetes
	@hack/demo.sh

.PHONY: test
test: ## All tests: lint, unit, interop, end to end
	@hack/test.sh

.PHONY: unit
unit: ## Unit and doc tests, model, simulation, and the engine on real Redis servers
	RUST_TEST_THREADS=4 cargo test --locked

.PHONY: sim
sim: ## The engine in simulation, over many more schedules of faults (N=100000, FROM=seed to begin with)
	SIM_SEEDS=$(or $(N),100000) SIM_FROM=$(or $(FROM),0) cargo test --profile sim -p redlock-engine --test sim no_two -- --nocapture

.PHONY: soak
soak: ## Processes and real servers under faults, for MINUTES=10 (SEED=1: these faults; SOAK_IDLE=report: a lock free for long is no failure)
	cargo build --locked --example soak-contender
	SOAK_MINUTES='$(MINUTES)' SOAK_SEED='$(SEED)' SOAK_IDLE='$(SOAK_IDLE)' cargo test --locked --test soak -- --ignored --nocapture

.PHONY: mutants
mutants: ## Plant each fault of tests/mutants in a copy of the tree: a test must fail (TEST='name ...': only those)
	@hack/mutants.sh $(TEST)

.PHONY: interop
interop: ## The engine beside other RedLock libraries: redsync, node-redlock (TEST=name: only those)
	@hack/interop.sh $(TEST)

.PHONY: e2e
e2e: ## Tests on a real Kubernetes (TEST=name: only those; KEEP=1: leave the cluster up)
	@hack/e2e.sh $(TEST)

.PHONY: e2e-full
e2e-full: ## The same, with the tests in which Kubernetes gives a dead machine up (a minute each)
	@E2E_FULL=1 hack/e2e.sh $(TEST)

.PHONY: storm
storm: ## The short form of chaos: two minutes
	@hack/chaos.sh no_two_hold_a_lock_in_a_short_storm

.PHONY: chaos
chaos: ## A storm of faults over all parts on the local cluster: MINUTES=30 SEED=1
	CHAOS_MINUTES='$(MINUTES)' CHAOS_SEED='$(SEED)' hack/chaos.sh --include-ignored long_storm

.PHONY: chaos-proof
chaos-proof: ## The checker of the storm finds a violation where the operator is built to allow one
	E2E_FEATURES=unsafe-for-chaos hack/chaos.sh without_restart_delay

.PHONY: scale
scale: ## Thousands of held locks, measured: LOCKS=1000,10000 MINUTES=10 REPLICAS=1
	SCALE_LOCKS='$(LOCKS)' SCALE_MINUTES='$(MINUTES)' SCALE_REPLICAS='$(REPLICAS)' \
		E2E_TEST=scale E2E_THREADS=1 IMAGE_PROFILE=release hack/e2e.sh --nocapture

.PHONY: lint
lint: ## Format, clippy, rustdoc, words, shellcheck, helm lint, cargo deny
	@hack/lint.sh

.PHONY: bench
bench: ## The engine beside other libraries (QUICK=1; ONLY=redsync,rslock; SECONDS=2; ROUNDS=3; PUBLISH=1: into docs/)
	@hack/bench.sh $(if $(QUICK),--quick) $(if $(ONLY),--only '$(ONLY)') $(if $(SECONDS),--seconds '$(SECONDS)') \
		$(if $(ROUNDS),--rounds '$(ROUNDS)') $(if $(PUBLISH),--publish)

.PHONY: image
image: ## Build the operator's image into target/image/redlock-operator.tar
	@hack/image.sh

.PHONY: crds
crds: ## Generate the CRDs from the Rust types, into crds/ and the chart
	cargo run -q -- crds --out crds
	cargo run -q -- crds --chart $(CHART)/templates/crds

.PHONY: cluster-up
cluster-up: ## Start the local Kubernetes (builds it the first time)
	@$(CLUSTER) up

.PHONY: cluster-down
cluster-down: ## Stop the local Kubernetes and remove everything of it
	@$(CLUSTER) down

.PHONY: setup
setup: ## Install what this machine lacks for all of the above
	@hack/setup.sh

.PHONY: clean
clean: ## Remove build output (the local Kubernetes' binaries stay in ~/.cache/kube-dev)
	cargo clean
