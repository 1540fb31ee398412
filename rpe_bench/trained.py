"""A run that has finished, as what is made of it takes it up again: its config, and its model with what it learned."""

import hashlib
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rpe_bench import checkpoints
from rpe_bench.checkpoints import CheckpointError
from rpe_bench.config import Config
from rpe_bench.errors import ConfigError
from rpe_bench.files import damage, read_record
from rpe_bench.model import Transformer, build_model


@dataclass(frozen=True)
class Trained:
    """A finished run.

    directory   where it is
    config      as it was resolved when it ran
    """

    directory: Path
    config: Config

    @classmethod
    def at(cls, directory: Path) -> "Trained":
        """The finished run in a directory.

        Raises:
            ConfigError: none is there, it is not finished, or not whole.
        """
        try:
            record = read_record(directory)
        except OSError as error:
            raise ConfigError(f"{directory}: {error.strerror}") from error
        if not record:
            raise ConfigError(f"{directory}: is not the directory of a run: it has no run.json that can be read")
        if record.get("status") != "finished":
            raise ConfigError(f"{directory}: the run is not finished, but {record.get('status')}")
        if (problem := damage(directory, record)) is not None:
            raise ConfigError(f"{directory}: {problem}")
        try:
            config = Config.load(directory / "config.yaml")
            config.run_id  # noqa: B018  # looks up the classes that it names: what is missing is said of this run
        except OSError as error:
            raise ConfigError(f"{directory / 'config.yaml'}: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(*(f"{directory / 'config.yaml'}: {line}" for line in error.errors)) from error
        return cls(directory, config)

    @property
    def steps(self) -> int:
        """Of training that its weights have behind them, those of the runs that it began with among them."""
        return (self.config.start.steps or 0) + self.config.recipe.steps

    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters that the run ended with, by their names in the model, on the CPU.

        Raises:
            ConfigError: its checkpoint is missing, damaged, of another format, or of another run.
        """
        path = self.directory / "checkpoint.pt"
        try:
            kept = checkpoints.read(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except CheckpointError as error:
            raise ConfigError(f"{path} {error}") from error
        if kept.get("run_id") != self.config.run_id:
            raise ConfigError(f"{path} is of another run, {kept.get('run_id')}, not {self.config.run_id}")
        weights = kept.get("model")
        if not isinstance(weights, dict) or not all(isinstance(weight, torch.Tensor) for weight in weights.values()):
            raise ConfigError(f"{path} holds no weights")
        return weights

    def model(self) -> Transformer:
        """The model as it was at the end of training, on the CPU.

        Raises:
            ConfigError: as `weights`, or its weights are not those of the model that its config describes.
        """
        model, weights = build_model(self.config), self.weights()
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            path = self.directory / "checkpoint.pt"
            _, first, *_ = f"{error}\n".split("\n")  # torch lists every parameter that differs, a line each
            differing = textwrap.shorten(first, 160, placeholder=" ...")
            raise ConfigError(f"{path} is of another architecture than config.yaml: {differing}") from error
        return model


def digest_of(weights: Mapping[str, torch.Tensor]) -> str:
    """16 hexadecimal digits by which weights are told from others: of their names, types, shapes and bits."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
