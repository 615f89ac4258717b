# make demo   build, then show every mechanism off and on, on test hosts (under three minutes)
# make test   the whole test suite; as root also what needs privileges
.DEFAULT_GOAL := help
.PHONY: help demo build test test-slow lint fmt peers deps fuzz clean

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

deps:
	@scripts/deps build

build: deps ## a release build of the command
	cargo build --release --locked -p cachelane

demo: build ## every mechanism off and on, with a report in cachelane-demo.html
	-@scripts/deps peers
	target/release/cachelane demo

test: deps peers ## the test suite, under 20 minutes on 2 cores
	cargo test --workspace --locked
	scripts/models

test-slow: deps peers ## tests that run for a long time
	scripts/models all
	cargo test --workspace --locked --release -- --ignored

lint: deps ## the checks that CI runs before the tests
	scripts/lint

fmt: deps ## format everything
	cargo fmt --all
	clang-format -i $$(git ls-files '*.c' '*.h')

peers: ## install what benches compare with
	@scripts/deps peers

clean: ## remove what was built
	cargo clean
