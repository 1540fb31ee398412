"""The commands of `rpe-bench`, one a file, which the command line finds by itself.

A command is a module with HELP, a line on it; `add_arguments(parser)`, and DESCRIPTION for that parser where a line is
not enough; and `main(parsed)`, which returns the exit status. Nothing heavy is imported before `main` needs it, so that
`rpe-bench --help` answers at once.
"""

import importlib
import os
import pkgutil
import sys
from types import ModuleType


def commands() -> dict[str, ModuleType]:
    """All commands by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def keep_to_one_thread() -> None:
    """Before torch and numpy are imported: neither may start threads or CUDA in a process that is to be forked."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"


def look_here() -> None:
    """A class in the current directory can be a target, as under `python -m rpe_bench`."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
