"""checkpoint.pt: what a run goes on from, and what is made of one that has finished."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rpe_bench.files import atomic

FORMAT = 1
"""Version of checkpoint.pt, on which no number depends: one of another version is not read."""


class CheckpointError(ValueError):
    """What is wrong with a checkpoint, as the rest of a sentence that begins with its name."""


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write what torch.save can; readers see the old file or the new one."""
    content = io.BytesIO()  # torch's own writer makes a RuntimeError of a full disk
    torch.save({**state, "format": FORMAT}, content)
    with atomic(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def read(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """What `write` was given, and its `format`.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it is damaged, or of another format.
    """
    # Apart from what is made of it, so that a disk that fails is not taken for a damaged file, nor the reverse.
    content = io.BytesIO(path.read_bytes())
    try:
        with zipfile.ZipFile(content) as archive:  # torch's own reader leaves the checksums alone
            is_whole = archive.testzip() is None
        content.seek(0)
        kept = torch.load(content, map_location=device, weights_only=True) if is_whole else None
    except Exception as error:  # a damaged pickle, and what zipfile reads in a damaged archive, may raise anything
        raise CheckpointError("is damaged") from error
    if not is_whole:
        raise CheckpointError("is damaged")
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        found = kept.get("format") if isinstance(kept, dict) else None
        raise CheckpointError(f"is of format {found}, not {FORMAT}")
    return kept
