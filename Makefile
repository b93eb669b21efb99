# The two commands of the README. Both make .venv and install into it first; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Other programs whose networks can be adopted. make test-hosts makes an environment for each and tests its adapter.
HOSTS := sevennet ani mace aimnet2 chgnet metatomic
HOST_VENVS ?= $(CURDIR)/.venv-hosts
PACKAGES_sevennet := sevenn
PACKAGES_ani := torchani
PACKAGES_mace := mace-torch
PACKAGES_chgnet := chgnet
PACKAGES_metatomic := metatrain

# Other programs that benchmarks compare with.
BENCH_VENV ?= .venv-bench

HOST_TESTS := $(HOSTS:%=test-host-%)

# Mutants of model files, data files, configurations and command lines: N of each, always the same for one SEED.
N ?= 1000
SEED ?= 0

.PHONY: demo test bench bench-mace fuzz storm test-hosts $(HOST_TESTS) install install-dev lint clean

demo: install
	$(BIN)/sigmaff demo

test: install-dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# A short form of benchmarks/performance.py, compared with the committed ratios. The data: SIGMAFF_DATA.
bench: $(BENCH_VENV)/installed
	OMP_NUM_THREADS=1 $(BENCH_VENV)/bin/python benchmarks/performance.py --rounds 7 --only schnet steps \
		--against docs/performance.json

# Beside MACE, which asks for another e3nn than nequip: in the environment of its adapter.
bench-mace: $(HOST_VENVS)/mace/installed
	OMP_NUM_THREADS=1 $(HOST_VENVS)/mace/bin/python benchmarks/performance.py --rounds 7 --only mace \
		--against docs/performance.json

$(BENCH_VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --constraint constraints.txt --editable ".[benchmarks]"
	touch $@

fuzz: install-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz --count $(N) --seed $(SEED) --keep ../fuzz-found

# Cuts and full disks at every file operation of every long command, some kills, signals and rivals: an hour or more.
storm: install-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m storm --seed $(SEED) $(STORM)

test-hosts: $(HOST_TESTS)

$(HOST_TESTS): test-host-%: $(HOST_VENVS)/%/installed
	TORCHANI_DATA_DIR=$(HOST_VENVS)/ani/weights SIGMAFF_AIMNET2=$(AIMNET2) OMP_NUM_THREADS=1 \
		$(HOST_VENVS)/$*/bin/python -m pytest tests/hosts/test_$*.py tests/hosts/test_reading.py

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/installed
install-dev: $(VENV)/installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(VENV)/installed $@

# Only the version of torch is that of constraints.txt: hosts ask for older versions of some packages.
$(HOST_VENVS)/%/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	grep '^torch==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/pip install --quiet --constraint $(@D)/constraints.txt --editable . pytest $(PACKAGES_$*)
	$(call WEIGHTS_$*,$(@D))
	touch $@

# Weights that are not in the package of the host: those of ANI-1x are in an old one, those of AIMNet2 in Auto3D.
AIMNET2 := $(HOST_VENVS)/aimnet2/weights/Auto3D/models/aimnet2_wb97m-d3_0.jpt
define WEIGHTS_ani
	$(1)/bin/pip download --quiet --no-deps --dest $(1)/wheels torchani==2.0
	$(1)/bin/python tests/hosts/ani_weights.py $(1)/wheels/torchani-2.0-*.whl $(1)/weights
endef
define WEIGHTS_aimnet2
	$(1)/bin/pip download --quiet --no-deps --dest $(1)/wheels Auto3D==2.3.1
	$(1)/bin/python -m zipfile -e $(1)/wheels/Auto3D-2.3.1-*.whl $(1)/weights
endef

clean:
	rm -rf $(VENV) .venv-bench .venv-hosts demo build dist fuzz-found
