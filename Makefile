# Installs, builds, tests and shows kvtier on Debian 12; `make help` lists the targets.

SHELL := /bin/sh
JOBS ?= 2

PACKAGES := g++ cmake ninja-build ccache pkg-config \
  libboost-dev libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev libbenchmark-dev \
  libsentencepiece-dev libzstd-dev zlib1g-dev libopenblas-dev liburing-dev
DEV_PACKAGES := clang-format clang-tidy valgrind

CODE_DIRS := $(wildcard sim policies hw kernels traces calibrate tests)
FIND_CODE = find $(CODE_DIRS) -type f \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \)
PROGRAM := build/release/bin/kvtier
DEMO_SYSTEMS := recompute,attentionstore_fifo,attentionstore_lru,attentionstore

# install_packages(names): installs those of the names that are missing, as root or by sudo.
# Where that is not possible it says exactly what is missing and fails.
define install_packages
@if ! command -v dpkg-query >/dev/null 2>&1; then \
  echo "setup: this is no Debian system; install the equivalents of: $(1)" >&2; \
  exit 0; \
fi; \
missing=; \
for package in $(1); do \
  status=`dpkg-query -W -f='$${db:Status-Status} ' "$$package" 2>/dev/null`; \
  case "$$status" in installed*) ;; *) missing="$$missing $$package" ;; esac; \
done; \
if [ -z "$$missing" ]; then exit 0; fi; \
if [ "`id -u`" = 0 ]; then \
  as_root=; \
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then \
  as_root="sudo -n"; \
else \
  echo "setup: these Debian packages are missing:$$missing" >&2; \
  echo "setup: install them as root, then run make again:" >&2; \
  echo "  apt-get update && apt-get install -y --no-install-recommends$$missing" >&2; \
  exit 1; \
fi; \
apt="$$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0"; \
echo "setup: installing$$missing"; \
log=`mktemp`; \
attempt=1; \
until { $$apt update && $$apt install -y --no-install-recommends $$missing; } >"$$log" 2>&1; do \
  cat "$$log" >&2; \
  echo "setup: attempt $$attempt of 4 failed, packages:$$missing" >&2; \
  if [ $$attempt -ge 4 ]; then rm -f "$$log"; exit 1; fi; \
  attempt=$$((attempt + 1)); \
  sleep 5; \
done; \
rm -f "$$log"
endef

.PHONY: help setup setup-dev build program demo test asan bench format check-format tidy clean

help:
	@echo 'make build         install what is missing, build into build/release'
	@echo 'make program       the same, the program alone'
	@echo 'make demo          build the program, then compare four systems on two example workloads'
	@echo 'make test          build, then run all tests'
	@echo 'make asan          build with the address and undefined sanitizers, run all tests but the slow ones'
	@echo 'make bench         build, then run the micro-benchmarks'
	@echo 'make setup         install the missing Debian packages only'
	@echo 'make setup-dev     the same, with clang-format, clang-tidy and valgrind'
	@echo 'make format        rewrite all sources with clang-format'
	@echo 'make check-format  fail if a source is not formatted'
	@echo 'make tidy          run clang-tidy on all sources'
	@echo 'make clean         remove build/'
	@echo 'JOBS=N sets the number of parallel jobs (2)'

setup:
	$(call install_packages,$(PACKAGES))

setup-dev:
	$(call install_packages,$(PACKAGES) $(DEV_PACKAGES))

build: setup
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

program: setup
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target kvtier

demo: program
	$(PROGRAM) compare configs/papers/attentionstore/llama2-13b.json --systems $(DEMO_SYSTEMS)
	$(PROGRAM) compare configs/examples/planner-70.json --systems $(DEMO_SYSTEMS)

test: build
	ctest --preset release --output-on-failure -j $(JOBS)

asan: setup
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS)
	ctest --preset asan --output-on-failure -j $(JOBS) -LE slow

bench: build
	build/release/bin/kvtier_bench

format:
	@command -v clang-format >/dev/null || { echo 'clang-format is missing: make setup-dev' >&2; exit 1; }
	$(FIND_CODE) -print0 | xargs -0 -r clang-format -i

check-format:
	@command -v clang-format >/dev/null || { echo 'clang-format is missing: make setup-dev' >&2; exit 1; }
	$(FIND_CODE) -print0 | xargs -0 -r clang-format --dry-run -Werror

tidy: setup-dev
	cmake --preset dev
	find $(CODE_DIRS) -type f -name '*.cpp' -print0 | xargs -0 -r -n 1 -P $(JOBS) clang-tidy -p build/dev --quiet --extra-arg=-Wno-unknown-warning-option

clean:
	rm -rf build
