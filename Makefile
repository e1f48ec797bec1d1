# Needs only Python and make; everything else goes into .venv.

PYTHON ?= python3
HOURS ?= 1
BIN := .venv/bin
READY := .venv/.ready
LIBRARIES := .venv-libraries
FORMATTER := .venv-format
VERL := verl==0.9.1 tensordict==0.10.0 # without the packages for GPUs that it requires
PINNED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt # also while a package is built
INSTALL := -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 2 --no-loadscope-reorder

.PHONY: demo test check format suite test-all unit libraries smoke prepare-smoke compatibility emulated search bench regress performance soak record docs
.PHONY: package lock clean

demo: $(READY)
	$(BIN)/dstack demo

test: check suite

suite: $(READY)
	$(PYTEST) -m "not exhaustive and not libraries"

test-all: check package
	EFFORT=thorough $(PYTEST) -m "not libraries"

unit: $(READY)
	$(PYTEST) tests/unit -m "not exhaustive"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Needs ruff alone, not the rest of .venv.
format: $(FORMATTER)/.ready
	$(FORMATTER)/bin/ruff format .
	$(FORMATTER)/bin/ruff check --fix .

# With all of Ray's libraries, torch and verl, which take 1.9 GB; the other tests need only Ray itself.
libraries: $(LIBRARIES)/.ready
	$(LIBRARIES)/bin/python -m pytest -m libraries tests/integration/test_library_examples.py tests/integration/test_fixes.py tests/integration/waits/test_torch_groups.py tests/integration/waits/test_recorder_dumps.py tests/integration/reading/test_task_history.py tests/kernel_worlds tests/rank_programs tests/integration/waits/test_torch_ledgers.py tests/integration/waits/test_torch_stores.py tests/hosts/test_ranks_across_hosts.py

smoke: $(READY)
	$(BIN)/python -m tests.versions.compatibility --smoke

prepare-smoke: $(READY)
	$(BIN)/python -m tests.versions.compatibility --smoke --prepare

compatibility: $(READY)
	EFFORT=thorough $(BIN)/python -m tests.versions.compatibility $(RAY)
	$(if $(RAY),,$(BIN)/python -m tests.versions.beside)

# On aarch64, emulated by QEMU, with Debian's kernel and Python. Needs root, debootstrap and qemu-system-aarch64.
emulated: $(READY)
	$(BIN)/python -m tests.versions.emulated

search: $(READY)
	EFFORT=search $(BIN)/python -m pytest --timeout 36000 tests/unit/analysis/soundness tests/unit/analysis/test_hostile_snapshots.py tests/kernel_worlds/test_real_worlds.py

bench: $(READY)
	for name in $(notdir $(basename $(wildcard benchmarks/bench_*.py))); do $(BIN)/python -m benchmarks.$$name || exit 1; done

regress: $(READY)
	$(BIN)/python -m benchmarks.regress $(BASE)

performance: $(READY)
	$(PINNED) $(BIN)/python $(INSTALL) --editable '.[dev,performance]'
	$(BIN)/python -m benchmarks.performance

# Ray's libraries under load on several hosts, with processes killed at random: every alarm is false. Needs root.
soak: $(LIBRARIES)/.ready
	$(LIBRARIES)/bin/python -m benchmarks.soak $(HOURS)

# Records a snapshot of every example on real Ray, which the tests and the documentation use; about 25 minutes.
record: $(READY) $(LIBRARIES)/.ready
	$(BIN)/python -m tests.examples.record '^(?!.*libraries)'
	$(LIBRARIES)/bin/python -m tests.examples.record libraries

# Writes the documentation into site/. A broken link or anchor is an error.
docs: $(READY)
	$(PINNED) $(BIN)/python $(INSTALL) --editable '.[dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The distribution in dist/, checked and installed by itself, with the list of what it requires (SBOM), and the known
# vulnerabilities of these packages. The last needs pypi.org itself: a mirror may know no vulnerabilities.
package:
	rm -rf dist .venv-package .venv-release
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python $(INSTALL) build twine cyclonedx-bom pip-audit py-rattler-build
	.venv-release/bin/python -c 'from rattler_build import Stage0Recipe; Stage0Recipe.from_file("conda/recipe.yaml").render()'
	.venv-release/bin/python -m build --outdir dist .
	.venv-release/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python $(INSTALL) dist/*.whl
	.venv-package/bin/dstack --version
	.venv-release/bin/cyclonedx-py environment .venv-package --pyproject pyproject.toml --output-file dist/sbom.json
	.venv-release/bin/pip-audit --path .venv-package/lib/python3*/site-packages --progress-spinner off
	.venv-package/bin/python $(INSTALL) packaging
	.venv-package/bin/python tests/versions/other_platform.py

# The newest version of each package that development needs, for every supported Python. Not pinned here are Ray, of which
# tests need several versions, and what pyproject.toml pins: torch and its packages for GPUs.
lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python $(INSTALL) uv
	printf 'hatchling\neditables\n' | .venv-lock/bin/uv pip compile --quiet --native-tls --universal --python-version 3.10 --all-extras --no-annotate --no-header --output-file .venv-lock/all.txt pyproject.toml -
	(echo '# What development and CI install: written by make lock.'; grep -vE '^(ray|torch|triton|nvidia-|cuda-)' .venv-lock/all.txt) > constraints.txt

# Nothing is mounted in the Debian tree of .venv-compatibility when no test runs in it; and mounts are never entered.
clean:
	rm -rf --one-file-system .venv .venv-compatibility .venv-emulated .venv-package .venv-release .venv-lock $(FORMATTER) $(LIBRARIES) build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(PINNED) $(BIN)/python $(INSTALL) --editable '.[dev]'
	$(BIN)/python -m compileall -q dstack # as pip does for others, even with PYTHONDONTWRITEBYTECODE: dstack starts 0.2 s earlier
	touch $@

$(FORMATTER)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(FORMATTER)
	$(PINNED) $(FORMATTER)/bin/python $(INSTALL) "$$(grep -o 'ruff>=[^"]*' pyproject.toml)"
	touch $@

$(LIBRARIES)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(LIBRARIES)
	$(PINNED) $(LIBRARIES)/bin/python $(INSTALL) --editable '.[dev,soak,collectives,messages,verl]'
	$(PINNED) $(LIBRARIES)/bin/python $(INSTALL) --no-deps $(VERL)
	touch $@
