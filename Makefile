# Everything a newcomer needs. `make help` lists the targets.
CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help demo test lint deny bench results faults aggregation conformance fuzz man install-deps

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install-deps: ## install what is missing (Debian, by apt-get)
	@scripts/install-deps.sh

demo: install-deps ## build, then fetch a file over two emulated links, four ways
	$(CARGO) build --release -p braid
	@target/release/braid demo $(DEMO_ARGS)

test: install-deps ## unit and property tests, then the network tests
	@scripts/test.sh

lint: ## formatting, clippy, documentation, tidy
	@$(CARGO) fmt --version >/dev/null 2>&1 && $(CARGO) clippy --version >/dev/null 2>&1 \
		|| rustup component add rustfmt clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) test --quiet -p braid --test tidy

deny: ## dependencies: licences, duplicates, known vulnerabilities, and an SBOM into target/sbom
	@scripts/deny.sh

bench: export BRAID_RELAYS = 1
bench: install-deps ## speed against the kernel's MPTCP; takes minutes, wants an idle machine
	@scripts/bench.sh $(BENCH_ARGS)

results: ## run the simulator's experiments and write docs/results.md (see CONTRIBUTING.md)
	@scripts/results.sh $(RESULTS_ARGS)

faults: install-deps ## what fourteen faults of a link do to users, over emulated links; minutes
	$(CARGO) build --release -p braid
	@scripts/with-net.sh target/release/braid lab run faults --out target/results

aggregation: ## a hundred pairs of paths in the simulator: what they bring together and alone
	$(CARGO) test -p braid-sim --test scenarios -- --ignored all_pairs
	@cat crates/sim/tests/scenarios/pairs.txt

conformance: ## write docs/conformance.md from docs/conformance.toml and the sources
	BRAID_WRITE=1 $(CARGO) test --quiet -p braid --test tidy conformance

fuzz: ## fuzz the packet parsers and the engine for FUZZ_SECONDS each (default 60)
	@scripts/fuzz.sh

man: ## man pages and shell completions into target/man
	$(CARGO) run --quiet -p braid -- man target/man
