# make demo   build, then show every mechanism off and on, on test hosts (under three minutes)
# make test   the whole test suite; as root also what needs privileges
.DEFAULT_GOAL := help
.PHONY: help demo build deb oci release book test test-slow test-kernels test-kernels-all lint fmt peers deps clean

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

deps:
	@scripts/deps build

build: deps ## a release build of the command
	cargo build --release --locked -p cachelane

deb: deps ## a Debian package, in target/deb
	scripts/deb

oci: deps ## a container image, as an OCI layout in target/oci/image
	scripts/oci

release: deps ## all files of a release, made twice and compared, in target/release-VERSION
	scripts/release

book: deps ## the manual, in target/book
	scripts/book

demo: build ## every mechanism off and on, with a report in cachelane-demo.html
	-@scripts/deps peers
	target/release/cachelane demo

test: deps peers ## the test suite, at most 12 minutes on 2 cores from a warm build
	@failed=0; \
	cargo test --workspace --locked --no-fail-fast || failed=1; \
	scripts/models || failed=1; \
	exit $$failed

test-slow: deps peers ## tests that run for a long time
	scripts/models all
	cargo test --workspace --locked --release --no-fail-fast -- --ignored
	scripts/book
	scripts/deb check
	scripts/release twice

test-kernels: deps ## tests on Linux 6.1, 6.12, 6.18 and the newest, each in an emulated machine: 25 minutes
	scripts/kernels/test

test-kernels-all: deps ## the whole suites there: hours
	scripts/kernels/test --all

lint: deps ## the checks that CI runs before the tests
	scripts/lint

fmt: deps ## format everything
	cargo fmt --all
	clang-format -i $$(git ls-files '*.c' '*.h')

peers: ## install what benches compare with and tests need
	@scripts/deps peers
	@scripts/deps kubernetes

clean: ## remove what was built
	cargo clean
