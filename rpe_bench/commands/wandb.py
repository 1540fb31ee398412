"""`rpe-bench wandb sync`: finished runs to Weights & Biases, after the fact."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.errors import ConfigError

HELP = "mirror finished runs to Weights & Biases after the fact: rpe-bench wandb sync [RESULTS_DIR]"


DESCRIPTION = """sync mirrors the finished runs of RESULTS_DIR that their project does not have yet: their numbers as
curves and tables, and their files as an artifact. Run it as often as you like: it goes on where it was cut short and
mirrors again what was run anew."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("sync",), metavar="ACTION", help="sync")
    parser.add_argument(
        "results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR", help="results by default"
    )
    parser.add_argument(
        "--mode",
        choices=("online", "offline"),
        default="online",
        help="offline leaves runs in RESULTS_DIR/wandb, for wandb's own `wandb sync`",
    )
    parser.add_argument("--project", help="instead of the runs' own logger.project")
    parser.add_argument("--entity", help="instead of the runs' own logger.entity")


def main(parsed: Namespace) -> int:
    import wandb

    from rpe_bench.locks import Held
    from rpe_bench.wandb_server import ServerError
    from rpe_bench.wandb_sync import sync

    for name in ("project", "entity"):
        if (given := getattr(parsed, name)) is not None:
            try:
                wandb.Settings(**{name: given})
            except (wandb.errors.UsageError, ValueError) as error:
                raise ConfigError(f"--{name}={given}: {' '.join(str(error).split())}") from error
    try:
        synced = sync(parsed.results_dir, parsed.mode, parsed.project, parsed.entity, tell=print)
    except (FileNotFoundError, NotADirectoryError) as error:
        problem = f"there is no directory {parsed.results_dir / 'runs'}"
        raise ConfigError(f"no runs in {parsed.results_dir}: {problem}") from error
    except OSError as error:  # what befalls a single run is said of that run
        raise ConfigError(f"{parsed.results_dir / 'wandb'}: cannot write there: {error.strerror}") from error
    except ServerError as error:
        advice = "`wandb login`, or --mode=offline" if "API key" in str(error) else "or --mode=offline"
        raise ConfigError(f"--mode={parsed.mode}: {error} ({advice})") from error
    except Held as error:
        print(f"{parsed.results_dir}: is being mirrored by {error}", file=sys.stderr)
        return 1
    print(synced)
    return 1 if synced.failed or synced.left else 0
