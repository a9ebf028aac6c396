# Thin: CMake builds (CMakePresets.json), tools/ does. `make help` lists.
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)

.PHONY: all demo test test-full judges lint asan ubsan tsan clean help

all: ## build build/graft
	@tools/install-needs --check
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: ## install what is missing, build, teach the embedded model something new, show before and after
	@tools/install-needs
	@$(MAKE) --no-print-directory all
	@tools/demo $(BUILD)

test: ## the quick tests (about ten minutes at most)
	@tools/install-needs
	@$(MAKE) --no-print-directory all
	@tools/check $(BUILD)
	@tools/run-tests $(BUILD) unit

test-full: ## the dear ones
	@tools/install-needs
	@$(MAKE) --no-print-directory all
	@tools/run-tests $(BUILD) full

judges: all ## ask llama.cpp, the gguf package, PyTorch and others (installs them into a venv)
	@tools/judges $(BUILD)

asan ubsan tsan: ## build with a sanitizer into build-NAME and run the quick tests
	@cmake --preset $@ >/dev/null
	@cmake --build build-$@ -j $(JOBS)
	@tools/run-tests build-$@ unit

clean:
	@rm -rf build build-asan build-ubsan build-tsan build-debug

help:
	@sed -n 's/^\([a-z -]*\):.*## \(.*\)/\1\t\2/p' Makefile
