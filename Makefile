# Everything a newcomer needs. `make help` lists the targets.
CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help demo test soak lint semver deny bench results results-check faults aggregation settings conformance fuzz man install-deps

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install-deps: ## install what is missing (Debian, by apt-get)
	@scripts/install-deps.sh

demo: export BRAID_DEMO = 1
demo: install-deps ## build, then fetch a file over two emulated links, four ways
	$(CARGO) build --profile demo -p braid -p braid-lab
	@target/demo/braid-lab demo $(DEMO_ARGS)

test: install-deps ## all that judges behaviour: in virtual time, then in network namespaces
	@scripts/test.sh

soak: install-deps ## rates and times of the wall clock, and every network test under load (SOAK_MINUTES=60)
	@scripts/soak.sh $(SOAK_ARGS)

lint: ## formatting, clippy, documentation, packages, the oldest Rust, tidy
	@scripts/lint.sh

semver: ## compare the published crates' interfaces with those of the last release; minutes at first
	@scripts/semver.sh

deny: ## dependencies: licences, duplicates, known vulnerabilities, and an SBOM into target/sbom
	@scripts/deny.sh

bench: export BRAID_RELAYS = 1
bench: install-deps ## speed against the kernel's MPTCP; takes minutes, wants an idle machine
	@scripts/bench.sh $(BENCH_ARGS)

# Results name the commit that they were made from.
results results-check faults: export BRAID_COMMIT = $(shell git describe --always --dirty --abbrev=12 --exclude '*')

results: ## run the simulator's experiments and write docs/results.md (see docs/lab.md)
	@scripts/results.sh $(RESULTS_ARGS)

results-check: install-deps ## repeat three drawn lines of docs/results.md on each backend, and compare
	@scripts/results-check.sh

faults: install-deps ## what fourteen faults of a link do to users, over emulated links; minutes
	$(CARGO) build --release -p braid -p braid-lab
	@scripts/with-net.sh target/release/braid-lab run faults --out target/results

aggregation: ## a hundred pairs of paths in the simulator: what they bring together and alone
	$(CARGO) test --workspace --test scenarios -- --ignored all_pairs
	@cat crates/sim/tests/scenarios/pairs.txt

settings: ## count the settings of box and server, against their bounds
	$(CARGO) test --quiet --workspace --test commands settings:: -- --nocapture

conformance: ## write docs/conformance.md from docs/conformance.toml and the sources
	BRAID_WRITE=1 $(CARGO) test --quiet --workspace --test tidy conformance

fuzz: ## fuzz the packet parsers and the engine for FUZZ_SECONDS each (default 60)
	@scripts/fuzz.sh

man: ## man pages and shell completions into target/man
	$(CARGO) run --quiet -p braid -- man target/man
	$(CARGO) run --quiet -p braid-lab -- man target/man
