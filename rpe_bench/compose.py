"""Hydra as the front door: its flags and override grammar, our judgement of keys and values, one line an error."""

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import hydra.version
import yaml
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rpe_bench import catalogue
from rpe_bench.errors import ConfigError, nearest

SLURM = "hydra_plugins.rpe_bench._slurm.SlurmLauncher"
"""The launcher that needs an extra, by its dotted path."""
_OTHER_SWEEPER = "a sweep goes with hydra/sweeper=resuming"

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
"""What Hydra raises where an override or a file is wrong."""

_KEY_VALUE = re.compile(r"(\+\+|\+|)(?P<key>[^=+~@/]+)=(?P<value>.*)", re.DOTALL)
_OPEN = (
    *("sweeper.params.", "launcher.additional_parameters."),
    *("job.env_set.", "job_logging.", "hydra_logging.", "callbacks."),
)
"""Where Hydra's own node takes keys of any name, which then need the `+`."""
_PLAIN_PATH = re.compile(r"(?!['\"]|(choice|range|interval|glob|sort|shuffle|tag)\()[^,]+", re.DOTALL)


@dataclass
class Composed:
    """One run's config as composed, and whether it is to be run or was only to be shown."""

    raw: dict[str, Any]
    shown_only: bool


def compose(arguments: Sequence[str]) -> Composed | None:
    """Do what `arguments`, Hydra's flags and overrides, ask for: all of it but the run itself.

    A sweep is done within, by the sweeper that conf/config.yaml names, and then nothing is left to return; nor is it
    after --help and its like.

    Raises:
        ConfigError: the arguments cannot be composed.
        SystemExit: after --help with status 0, after a sweep with its own.
    """
    # Hydra would otherwise print errors in its own way, over several lines, and exit with status 1 for all.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    hydra.version.setbase("1.3")
    parser = get_args_parser()
    parser.__class__ = _Parser
    parsed = _parse(parser, arguments)
    if not parsed.shell_completion:
        parsed.overrides = judged_by_us(parsed.overrides)
    _register_plugins()

    found: list[DictConfig] = []
    launchers: list[str] = []

    def keep(config: DictConfig) -> None:
        # Our sweeper gives its launcher another function; what another sweeper composes would never be run.
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise ConfigError(_OTHER_SWEEPER)
        found.append(config)
        launchers.append(HydraConfig.get().launcher.get("_target_"))

    def run_hydra(request: argparse.Namespace) -> None:
        _run_hydra(
            args=request,
            args_parser=parser,
            task_function=keep,
            config_path=str(catalogue.CONF),
            config_name="config",
        )

    shown = parsed.cfg in ("job", "all") and not parsed.help
    repeat = argparse.Namespace(**vars(parsed))
    try:
        run_hydra(parsed)
        if shown:
            # A config that is wrong is still shown, and then judged, rather than passed as good.
            repeat.cfg, repeat.package, repeat.resolve = None, None, False
            repeat.overrides = [*repeat.overrides, "hydra.mode=RUN"]
            run_hydra(repeat)
        if SLURM in launchers and not shown:
            raise ConfigError("hydra/launcher=slurm: goes with -m, for one run too")
        return Composed(as_data(found[0]), shown) if found else None
    except COMPOSITION_ERRORS as error:
        raise ConfigError(explain(error)) from error
    except ValueError as error:
        if isinstance(error, ConfigError) or not repeat.shell_completion:
            raise
        raise ConfigError(f"--shell-completion: {' '.join(str(error).split())}") from error


def as_data(config: DictConfig) -> dict[str, Any]:
    """A composed config, without Hydra's own node, as plain data; OmegaConf's errors where a value is missing."""
    keys = [str(key) for key in config if key != "hydra"]
    data = OmegaConf.to_container(OmegaConf.masked_copy(config, keys), resolve=True, throw_on_missing=True)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def _register_plugins() -> None:
    """Make the sweeper and the launcher known to Hydra.

    Hydra finds plugins by walking directories, which misses those of an editable install. They must be imported after
    that walk, and as `hydra_plugins.*`.
    """
    plugins = Plugins.instance()
    from hydra_plugins.rpe_bench.launcher import PoolLauncher
    from hydra_plugins.rpe_bench.sweeper import ResumingSweeper

    plugins.register(PoolLauncher)
    plugins.register(ResumingSweeper)


def register_slurm() -> None:
    """Make the launcher of SLURM known to Hydra.

    Raises:
        ConfigError: what it needs is not installed.
    """
    try:
        from hydra_plugins.rpe_bench._slurm import SlurmLauncher
    except ImportError as error:
        what = f"needs the extra slurm, as by pip install -e '.[slurm]' ({error})"
        raise ConfigError(f"hydra/launcher=slurm: {what}") from error
    Plugins.instance().register(SlurmLauncher)


def judged_by_us(overrides: Iterable[str]) -> list[str]:
    """Overrides in the form that Hydra accepts whatever their key, since `resolve` knows better which keys exist.

    Hydra knows the keys that a YAML lists, and for others demands a `+`. A class may take more parameters than its YAML
    lists, and of what is neither, `resolve` can say what was meant.

    Raises:
        ConfigError: a group is given a list, which Hydra would merge into one choice; or what would be passed over in
            silence: a choice's id that contradicts the choice, a class in the place of several choices, a second
            experiment, a sweeper of another kind.
    """
    overrides = list(overrides)
    values = {key: override.partition("=")[2] for override in overrides if (key := _key(override))}
    keys = values.keys()
    for group in catalogue.GROUPS:
        if f"{group}.name" in keys and f"{group}.target" not in keys:
            own = group in ("encoding", "task", "positions")
            also = f" (a class of your own is given by {group}.target too)" if own else ""
            raise ConfigError(f"{group}.name: is the id of the choice, which is made by {group}=ID{also}")
        if f"{group}.target" in keys and re.search("[,(]", values.get(group, "")):
            other = f"in a sweep with others, a class needs a file in conf/{group}"
            raise ConfigError(f"{group}.target: is one {group}'s, but {group}={values[group]} are several ({other})")
    return [_judged_by_us(override) for override in overrides]


def _key(override: str) -> str | None:
    match = _KEY_VALUE.fullmatch(override)
    # Given on the command line, a parameter of the sweeper is no more than the values of an override.
    return match["key"].removeprefix("hydra.sweeper.params.") if match else None


def _judged_by_us(override: str) -> str:
    match = _KEY_VALUE.fullmatch(override)
    if match is None and not re.search("[~@/]", override):
        raise ConfigError(f"{override}: is no override, which reads key=value")
    key = _key(override)
    if match is None or key is None:
        group, _, value = override.lstrip("+").partition("=")
        if group == "hydra/sweeper" and value != "resuming":
            raise ConfigError(f"{plain(override)}: {_OTHER_SWEEPER}")
        return override
    value = match["value"]
    if key.startswith("hydra."):
        # Without its `+`, a key that Hydra does not know is refused rather than passed over.
        return override if key.removeprefix("hydra.").startswith(_OPEN) else plain(override)
    if key == "experiment":
        if re.search(r"[,\[({*]", value):
            raise ConfigError(f"experiment={value}: one experiment at a time")
        return f"+experiment={value}"
    if key in ("results_dir", "start.run") and _PLAIN_PATH.fullmatch(value):
        return f"++{key}={quoted(value)}"
    if key not in catalogue.GROUPS:
        return f"++{key}={value}"
    if value.startswith(("[", "{")):
        raise ConfigError(f"{key}={value}: a run has one {key} (a sweep over several reads -m {key}=a,b)")
    return f"{key}='{value}'" if _reads_like_a_number(value) else f"{key}={value}"  # a choice is a name all the same


@cache
def _reads_like_a_number(value: str) -> bool:
    return re.fullmatch(r"[\w.+-]+", value) is not None and not isinstance(yaml.safe_load(value), str)


def quoted(value: str) -> str:
    """Text as Hydra's grammar quotes it: a backslash is one, but for those before a quote."""
    return '"' + re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value) + '"'


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    # Intermixed: flags may stand between overrides.
    parsed, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        flags = sorted(flag for action in parser._actions for flag in action.option_strings if flag.startswith("--"))
        raise ConfigError(f"{unknown[0]}: unknown flag{nearest(unknown[0], flags)} (flags: {', '.join(flags)})")
    commands = ("run", "multirun", "cfg", "info", "shell_completion")
    asked = [f"--{command.replace('_', '-')}" for command in commands if getattr(parsed, command)]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)}: one at a time")
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise ConfigError("--resolve: goes with --cfg or --help")
    if (parsed.config_path or "").endswith((".yaml", ".yml")):
        raise ConfigError(f"--config-path={parsed.config_path}: is a directory; a file's name goes with --config-name")
    if parsed.experimental_rerun is not None:
        raise ConfigError("--experimental-rerun: not supported (a run is repeated by giving its overrides again)")
    return parsed


def explain(error: BaseException) -> str:
    """One of Hydra's or OmegaConf's errors on one line."""
    text = str(error)
    if isinstance(error, yaml.YAMLError):  # says where on its last line
        return " ".join(text.split())
    if isinstance(error, OverrideParseException):
        given, reason = plain(error.override), _first_line(error)
        if re.match(r"\w+Exception:", reason):  # the parser's own, of a character that it has no word for
            key, _, value = given.partition("=")
            return f"{given}: cannot be read; quote it: '{key}={quoted(value)}'"
        return f"{given}: cannot be read: {reason}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, name = error.missing_cfg_file.rpartition("/")
        file = re.match(r"In '(.*?)'", text)
        where = f" (in {file[1]}.yaml)" if file and file[1].startswith("experiment/") else ""
        return catalogue.unknown_choice(group, name, sorted(error.options)) + where
    ambiguous = re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.*?)'", text)
    if ambiguous:
        return f"{plain(ambiguous[1])}: several values make a sweep, which needs -m (a list reads key=[1,2])"
    # A composition error says where; its cause, if there is one, what and for which key.
    cause = error.__cause__ or error
    parts = [getattr(cause, "full_key", None), _first_line(error), _first_line(cause)]
    return ": ".join(dict.fromkeys(part for part in parts if part))


def plain(override: str) -> str:
    """An override as one would type it."""
    return override.lstrip("+")


def _first_line(error: BaseException) -> str:
    first, _, rest = str(error).partition("\n")
    if first.endswith(":"):
        first += " " + rest.partition("\n")[0]
    return first.rstrip(".")
