# Two commands do everything: `make demo` shows the main job, `make test` runs the tests. Both install what they need.

.PHONY: build demo test test-all tidy clean

build:
	@scripts/setup.sh build
	cargo build --release --package torpor

demo:
	@scripts/setup.sh build
	@echo "Building torpor and the demo's web server package; the first time takes some minutes …"
	@cargo build --release --package torpor --package torpor-testkit $$([ -t 2 ] || echo --quiet)
	@scripts/demo.sh

test:
	@scripts/setup.sh test
	@scripts/test.sh

test-all:
	@scripts/setup.sh test
	@TORPOR_TEST_ALL=1 scripts/test.sh

tidy:
	cargo xtask tidy

clean:
	cargo clean
