# Thin: CMake builds (CMakePresets.json), tools/ does. `make help` lists.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)

.PHONY: all demo install test test-full judges lint asan ubsan tsan clean help

all: ## build everything: the program is build/graft, the library build/libgraft.so
	@tools/install-needs --check
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: ## install what is missing, build the program, teach the embedded model something new: before and after
	@tools/install-needs
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target graft
	@tools/demo $(BUILD)

install: all ## install the program, the library, its headers and graft.pc (PREFIX=/usr/local, DESTDIR)
	@cmake --install $(BUILD) --prefix $(PREFIX)

test: ## the quick tests
	@tools/install-needs
	@$(MAKE) --no-print-directory all
	@tools/check $(BUILD)
	@tools/run-tests $(BUILD) unit

test-full: ## the dear tests, with the real models that they fetch
	@tools/install-needs
	@$(MAKE) --no-print-directory all
	-@tools/fetch-model smollm2
	-@tools/fetch-model gemma3-270m
	@tools/run-tests $(BUILD) full

judges: all ## ask llama.cpp, the gguf package, PyTorch and others (installs them into a venv)
	@tools/judges $(BUILD)

# What runs on more than one thread; with the rest ThreadSanitizer would take an hour and find nothing.
tsan: export GR_TESTS_ONLY ?= test_base test_cpu test_emu* test_gguf test_optest test_ops test_quantize test_quantized_gradients test_split \
	test_together test_tokenizer test_train test_api* cli.sh data.sh train.sh

asan ubsan tsan: ## build with a sanitizer into build-NAME and run the quick tests (tsan: those with threads)
	@tools/install-needs
	@cmake --preset $@ >/dev/null
	@cmake --build build-$@ -j $(JOBS)
	@tools/run-tests build-$@ unit

clean:
	@rm -rf build build-asan build-ubsan build-tsan build-debug build-fuzz build-aarch64

help:
	@sed -n 's/^\([a-z -]*\):.*## \(.*\)/\1\t\2/p' Makefile
