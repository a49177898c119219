# Installs, builds, tests and shows kvtier on Debian 12; `make help` lists the targets.

SHELL := /bin/sh
JOBS ?= 2

DEMO_PACKAGES := g++ cmake ninja-build ccache pkg-config \
  libboost-dev libfmt-dev nlohmann-json3-dev libcli11-dev libsentencepiece-dev libzstd-dev zlib1g-dev libarchive-dev
PACKAGES := $(DEMO_PACKAGES) libgtest-dev libbenchmark-dev libopenblas-dev liburing-dev libjs-chart.js
PYTHON_PACKAGES := python3 python3-dev python3-venv python3-pip
DEV_PACKAGES := clang-format clang-tidy valgrind
FUZZ_PACKAGES := clang libclang-rt-14-dev
BROWSER_PACKAGES := python3 chromium
NOTEBOOK_PACKAGES := python3 python3-venv

CODE_DIRS := $(wildcard sim policies hw kernels traces calibrate tests)
FIND_CODE = find $(CODE_DIRS) -type f \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \)
PROGRAM := build/release/bin/kvtier
DEMO := build/release/bin/kvtier_demo
PYTHON_VENV := build/python/venv
# The build requirements of pyproject.toml.
PYTHON_BUILD := 'scikit-build-core>=0.10,<1' 'pybind11>=2.13,<4'
# The extra cachesim of pyproject.toml.
CACHE_SIMULATOR := 'libcachesim>=0.3.5,<0.4'
# Seconds of each fuzz target.
FUZZ_SECONDS ?= 60
FUZZ := build/fuzz
FUZZ_TARGETS := $(basename $(notdir $(filter-out %/fuzz.cpp %/replay.cpp,$(wildcard tests/fuzz/*.cpp))))
NOTEBOOKS := build/notebooks
DOCS := build/docs
MACHINE_CODE := build/machine-code
FLASHINFER := build/flashinfer
# Architectures that FlashInfer's kernels are compiled for; each takes a minute.
FLASHINFER_ARCHITECTURES ?= 90a
NOTEBOOK_SWEEPS := policies-by-capacity dram-capacity systems
DEMO_SYSTEMS := vllm,vllm_cpu_offload,vllm_lmcache,sglang_hicache

# install_packages(names): installs those of the names that are missing, as root or by sudo.
# If that is not possible, it names the missing packages and fails.
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

.PHONY: help setup setup-demo setup-dev build program demo test python python-tools wheel test-python check-validation check-report check-engines notebooks docs faults asan tsan cuda-emulation machine-code flashinfer gpu-check gpu-carry fuzz bench format check-format tidy clean

help:
	@echo 'make build         install what is missing, build into build/release'
	@echo 'make program       the same, the program alone'
	@echo 'make demo          build the part for compare, then compare four systems on an example'
	@echo 'make test          build, then run all tests'
	@echo 'make python        build the Python package into a virtual environment, build/python/venv (needs PyPI)'
	@echo 'make python-tools  only install what that build needs into the environment'
	@echo 'make wheel         build a wheel of the Python package into build/wheels'
	@echo 'make test-python   make python, then run its tests'
	@echo 'make check-validation  build the program, then run two points of the validation matrix on this machine (9 to 22 minutes)'
	@echo 'make check-report  build the program, then open pages of kvtier report in a headless browser (Chromium)'
	@echo 'make check-engines build the program, then compare it with the own code of vLLM, SGLang and LMCache (needs PyPI, 16 GB;'
	@echo '                   ENGINES=vllm,sglang,lmcache VLLM= SGLANG= LMCACHE= TRACE= REQUESTS= CASES= RECORDED=)'
	@echo 'make notebooks     build the program, run sweeps, execute the notebooks into build/notebooks'
	@echo 'make docs          build the documentation as pages into build/docs/site; a dead link fails (needs PyPI)'
	@echo 'make faults        build, then let system calls fail, kill runs and fill disks, and check the files left (minutes)'
	@echo 'make asan          build with the address and undefined sanitizers, run the tests but those of full size'
	@echo 'make tsan          build with the thread sanitizer, run the tests of code with threads'
	@echo 'make cuda-emulation  build the CUDA module for the host, run its tests on an emulated GPU (needs the headers of CUDA)'
	@echo 'make machine-code  build the CUDA module, check the machine code of the attention kernels (nvcc; needs PyPI)'
	@echo 'make flashinfer  build the CUDA module with the attention of FlashInfer beside its own, into build/flashinfer (nvcc; needs PyPI)'
	@echo 'make fuzz          fuzz the readers of input with libFuzzer, FUZZ_SECONDS=60 each (Clang)'
	@echo 'make gpu-check     build with CUDA, check and measure a GPU in eight minutes, results in build/gpu-check (STEPS= SCALE= DEVICE= STORAGE=)'
	@echo 'make gpu-carry     pack the same for a machine with a GPU and no compiler, into build/gpu (GPU_CARRY=)'
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

setup-demo:
	$(call install_packages,$(DEMO_PACKAGES))

setup-dev:
	$(call install_packages,$(PACKAGES) $(DEV_PACKAGES))

build: setup
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

program: setup
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target kvtier

demo: setup-demo
	cmake --preset release -DKVTIER_DEMO_ONLY=ON
	cmake --build --preset release -j $(JOBS) --target kvtier_demo
	$(DEMO) compare configs/examples/agents-h100-8x.json --systems $(DEMO_SYSTEMS)

test: build
	ctest --preset release --output-on-failure -j $(JOBS)

# Any installed Python may make the environment. Only a bare machine needs Debian's.
python-tools:
	@python3 -c 'import ensurepip, sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || $(MAKE) --no-print-directory setup-python
	@$(PYTHON_VENV)/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv $(PYTHON_VENV)
	@$(PYTHON_VENV)/bin/python -m pip install -q --disable-pip-version-check $(PYTHON_BUILD) || { \
	  echo 'python-tools: the packages that the build needs were not installed; is PyPI within reach?' >&2; \
	  exit 1; }

python: setup python-tools
	@# Named as CMake names it for the other builds, so that ccache finds their objects.
	CXX=$${CXX:-c++} $(PYTHON_VENV)/bin/python -m pip install -v --disable-pip-version-check --no-build-isolation '.[test]'
	@# Not every machine has a wheel of it; the tests that need it are skipped there.
	@$(PYTHON_VENV)/bin/python -m pip install -q --disable-pip-version-check --only-binary :all: $(CACHE_SIMULATOR) || \
	  echo 'python: without libcachesim, tests/python/test_libcachesim.py is skipped'

wheel: setup python-tools
	CXX=$${CXX:-c++} $(PYTHON_VENV)/bin/python -m pip wheel -v --disable-pip-version-check --no-build-isolation --no-deps \
	  --wheel-dir build/wheels .

.PHONY: setup-python
setup-python:
	$(call install_packages,$(PYTHON_PACKAGES))

test-python: python program
	$(PYTHON_VENV)/bin/python -m pytest -q tests/python

# Times are judged, so the machine should be idle.
check-validation: program
	python3 tests/validation/free_runs.py --program $(PROGRAM) --configs configs --out build/validation

check-report: program
	$(call install_packages,$(BROWSER_PACKAGES))
	python3 tests/report/browser_check.py --program $(PROGRAM) --configs configs --out build/report-screenshots

# The newest versions of all engines, on the sample of Mooncake's trace, unless variables say otherwise.
check-engines: program
	@python3 -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory setup-python
	python3 tests/engines/check_engines.py --program $(PROGRAM) --jobs $(JOBS) $(if $(ENGINES),--engines $(ENGINES)) \
	  $(if $(VLLM),--vllm $(VLLM)) $(if $(SGLANG),--sglang $(SGLANG)) $(if $(LMCACHE),--lmcache $(LMCACHE)) \
	  $(if $(RECORDED),--recorded '$(RECORDED)') \
	  $(if $(TRACE),--trace '$(TRACE)') $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(CASES),--cases '$(CASES)')

# Python packages, installed again if requirements.txt changes.
$(NOTEBOOKS)/venv/installed: notebooks/requirements.txt
	$(call install_packages,$(NOTEBOOK_PACKAGES))
	python3 -m venv --clear $(NOTEBOOKS)/venv
	$(NOTEBOOKS)/venv/bin/pip install -q --disable-pip-version-check -r notebooks/requirements.txt
	touch $@

notebooks: program $(NOTEBOOKS)/venv/installed
	rm -rf $(NOTEBOOKS)/sweeps
	for sweep in $(NOTEBOOK_SWEEPS); do \
	  $(PROGRAM) sweep configs/sweeps/$$sweep.json --out $(NOTEBOOKS)/sweeps/$$sweep --jobs $(JOBS) || exit 1; \
	done
	KVTIER_SWEEPS="$(CURDIR)/$(NOTEBOOKS)/sweeps" $(NOTEBOOKS)/venv/bin/jupyter nbconvert --to html --execute \
	  --output-dir $(NOTEBOOKS) notebooks/*.ipynb

# The generator of the documentation, installed again if its version changes.
$(DOCS)/venv/installed: docs/requirements.txt
	@python3 -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory setup-python
	python3 -m venv --clear $(DOCS)/venv
	$(DOCS)/venv/bin/python -m pip install -q --disable-pip-version-check -r docs/requirements.txt
	touch $@

docs: $(DOCS)/venv/installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/venv/bin/mkdocs build --quiet --strict

faults: setup
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target kvtier kvtier_inject
	python3 tests/faults/faults.py --all --program $(PROGRAM) --inject build/release/tests/faults/kvtier_inject.so --configs configs

# STUDIES=OFF leaves out the tests of sim/study and sim/cli, which are half of what there is to build and to run.
STUDIES ?= ON
asan: setup
	cmake --preset asan -DKVTIER_STUDY_TESTS=$(STUDIES)
	cmake --build --preset asan -j $(JOBS) --target kvtier_tests
	ctest --preset asan --output-on-failure -j $(JOBS)

# Devices, storage engines, and runs on them. The sanitizer needs the same addresses in every run.
TSAN_PROGRAMS := tests_hw_device tests_hw_device_storage_io_test tests_calibrate tests_sim_device
TSAN_TESTS := ^(hw/device/all|hw/device/storage_io_test/all|calibrate/all|sim/device/all)$$
tsan: setup
	cmake --preset tsan
	cmake --build --preset tsan -j $(JOBS) --target $(TSAN_PROGRAMS)
	setarch -R ctest --preset tsan --output-on-failure -R '$(TSAN_TESTS)'

# The CUDA module on a machine without a GPU, with EMULATION_CASES random batches of attention.
EMULATION_CASES ?= 500
cuda-emulation: setup
	$(call install_packages,libboost-context-dev)
	cmake --preset release -DKVTIER_CUDA_EMULATION=ON
	cmake --build --preset release -j $(JOBS) --target tests_cuda_emulation kvtier_on_emulation
	KVTIER_TEST_CASES=$(EMULATION_CASES) ctest --preset release --output-on-failure -j $(JOBS) -L emulation

# NVIDIA's packages with the programs that read machine code. Some installations of nvcc lack them.
$(MACHINE_CODE)/venv/installed:
	$(call install_packages,$(PYTHON_PACKAGES))
	python3 -m venv --clear $(MACHINE_CODE)/venv
	$(MACHINE_CODE)/venv/bin/python -m pip install -q --disable-pip-version-check 'nvidia-cuda-cuobjdump>=13,<14' 'nvidia-cuda-nvdisasm>=13,<14'
	chmod +x $(MACHINE_CODE)/venv/lib/python3*/site-packages/nvidia/cu13/bin/*
	touch $@

machine-code: setup $(MACHINE_CODE)/venv/installed
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS) --target kvtier_cuda
	PATH="`echo $(CURDIR)/$(MACHINE_CODE)/venv/lib/python3*/site-packages/nvidia/cu13/bin`:$$PATH" \
	  python3 tests/kernels/machine_code.py build/cuda/lib/kvtier/kvtier_cuda.so

# Headers alone, without the packages' dependencies. The adapter calls functions of FlashInfer that
# change from one version to the next, so the version is exact.
FLASHINFER_VERSION := 0.7.4
$(FLASHINFER)/packages/installed: Makefile
	$(call install_packages,$(PYTHON_PACKAGES))
	rm -rf $(FLASHINFER)/packages
	python3 -m venv --clear $(FLASHINFER)/venv
	$(FLASHINFER)/venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(FLASHINFER)/packages \
	  flashinfer-python==$(FLASHINFER_VERSION) 'nvidia-cuda-cccl>=13.3,<14'
	touch $@

flashinfer: setup $(FLASHINFER)/packages/installed
	cmake --preset cuda -B $(FLASHINFER)/build -DKVTIER_FLASHINFER=$(CURDIR)/$(FLASHINFER)/packages \
	  '-DCMAKE_CUDA_ARCHITECTURES=$(FLASHINFER_ARCHITECTURES)'
	cmake --build $(FLASHINFER)/build -j $(JOBS) --target kvtier_cuda

# A crash leaves its input in build/fuzz/findings. Leaks are checked if the system allows it.
# build/fuzz/corpus keeps the inputs found before.
fuzz: setup
	$(call install_packages,$(FUZZ_PACKAGES))
	cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS)
	@for target in $(FUZZ_TARGETS); do \
	  mkdir -p $(FUZZ)/corpus/$$target $(FUZZ)/findings; \
	  echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
	  log=$(FUZZ)/$$target.log; \
	  $(FUZZ)/tests/fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -timeout=25 -rss_limit_mb=2048 -max_len=8192 -mutate_depth=2 \
	    -print_final_stats=1 -artifact_prefix=$(FUZZ)/findings/$$target- $(FUZZ)/corpus/$$target \
	    `find tests/fuzz -mindepth 2 -name $$target` >$$log 2>&1 || \
	    { tail -n 60 $$log; echo "fuzz: $$target failed; its log is $$log" >&2; exit 1; }; \
	  grep -E '^stat::(number_of_executed_units|peak_rss_mb)' $$log; \
	done

# GPU_OUT gets the results. STORAGE is a folder on the drive to use.
DEVICE ?= cuda:0
GPU_OUT ?= build/gpu-check
STORAGE ?= $(GPU_OUT)
GPU_CARRY ?= build/gpu
GPU_PROGRAMS := kvtier kvtier_cuda kvtier_attention_bench kvtier_device_probe tests_hw_device_cuda_device_test
gpu-check: setup
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS) --target $(GPU_PROGRAMS)
	mkdir -p $(STORAGE)
	python3 tests/gpu/gpu_check.py --bin build/cuda/bin --tests build/cuda/tests/tests_hw_device_cuda_device_test \
	  --out $(GPU_OUT) --storage $(STORAGE) --device $(DEVICE) $(if $(STEPS),--steps $(STEPS)) $(if $(SCALE),--scale $(SCALE))

# A module with FlashInfer travels, too, if `make flashinfer` has fetched its headers.
gpu-carry: setup
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS) --target $(GPU_PROGRAMS)
	@if [ -e $(FLASHINFER)/packages/installed ]; then $(MAKE) flashinfer; fi
	python3 tests/gpu/gpu_carry.py --build build/cuda --out $(GPU_CARRY) \
	  `[ ! -e $(FLASHINFER)/packages/installed ] || echo --flashinfer $(FLASHINFER)/build/lib/kvtier/kvtier_cuda.so`

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
	find $(CODE_DIRS) -path sim/python -prune -o -type f -name '*.cpp' -print0 | xargs -0 -r -n 1 -P $(JOBS) clang-tidy -p build/dev --quiet --extra-arg=-Wno-unknown-warning-option

clean:
	rm -rf build
