# Set-up and the everyday commands. Needs GNU make and Python 3.11 or newer; everything else goes into .venv.
#
# .venv belongs to make: it holds the releases pinned in constraints.txt, and is made anew when it is broken, half
# installed, moved or copied. Torch comes as the build that your package index has for the pinned release; for another,
# say for your GPU, install into an environment of your own and leave `-c constraints.txt` out.

# make splits names at spaces, so every path here is relative to the checkout.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint clean anew

# .venv/installed is written last and removed first, so it stands only in a finished installation. It holds the folder
# that this was made in, as scripts and the editable install point there, and a stamp for each set of extras.
identity := import sys; print(sys.base_prefix, sys.version)
kept := $(shell exec 2>/dev/null; \
	[ "$$(cat .venv/installed/in)" = "$$(pwd -P)" ] && mine="$$(.venv/bin/python -c '$(identity)')" && \
	{ [ -z "$(PYTHON)" ] || [ "$$("$(PYTHON)" -c '$(identity)')" = "$$mine" ]; } && echo yes)
# By content as well as by date: files that were unpacked or copied may carry old dates.
pins := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)

base := .venv/installed/base-$(pins)
test := .venv/installed/test-$(pins)
dev := .venv/installed/dev-$(pins)

help: ## this list
	@echo "make TARGET [PYTHON=/path/to/python]"
	@sed -n 's/^\([a-z]*\):.* ## /    \1	/p' Makefile

demo: $(base) ## train five encodings on three tasks, then draw the report (set-up, then at most 6 minutes on two cores)
	.venv/bin/rpe-bench run +experiment=demo
	.venv/bin/rpe-bench report

test: $(test) ## run the test suite; ARGS="-k rope" and the like go to pytest
	OMP_NUM_THREADS=1 .venv/bin/pytest -n auto --maxprocesses 8 $(ARGS)

lint: $(dev) ## check style and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

clean: ## remove .venv, and nothing else
	rm -rf .venv

# Each stamp, the extras that it asks pip for, and the stamps that it makes true.
$(base): extras :=
$(base): stamps := $(base)
$(test): extras := [test]
$(test): stamps := $(base) $(test)
$(dev): extras := [dev]
$(dev): stamps := $(base) $(test) $(dev)

$(base) $(test) $(dev): pyproject.toml constraints.txt $(if $(kept),,anew)
	rm -rf .venv/installed
	.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.$(extras)'
	mkdir .venv/installed
	touch $(stamps)
	pwd -P > .venv/installed/in

anew:
	@for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Making .venv with $$("$$python" --version), then installing: one to a few minutes"; \
			exec "$$python" -m venv --clear .venv; \
		fi; \
	done; \
	echo "$(if $(PYTHON),PYTHON=$(PYTHON) is not,make found no) Python 3.11 or newer with its venv module" \
		"(Debian and Ubuntu: apt install python3-venv); choose one with PYTHON=/path/to/python" >&2; \
	exit 2
