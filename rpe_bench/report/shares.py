"""Where the time of a training step goes, in words: from the rows of shares.csv."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

FLOOR, MASKED, OTHER = "floor", "floor, masked pairs too", "step in "


def text(rows: Iterable[Mapping[str, Any]], about: str) -> str:
    """A block of lines for each encoding and length: shares of the step, medians over rounds with quartiles."""
    frame = pd.DataFrame(list(rows))
    blocks = [about]
    for (length, name), part in frame.groupby(["length", "encoding"], sort=False):
        wide = part.pivot(index="round", columns="quantity", values="value")
        steps = wide["step"].dropna()
        blocks.append("\n".join([f"{name}, {length} tokens: {_milliseconds(steps)}", *_lines(wide, steps)]))
    return "\n\n".join(blocks)


def _lines(wide: pd.DataFrame, steps: pd.Series) -> list[str]:
    measured = wide.loc[steps.index]

    def share(quantity: str) -> tuple[float, str]:
        low, middle, high = np.percentile(measured[quantity] / steps, [25, 50, 75])
        return float(middle), f"{100 * middle:5.1f} % [{100 * low:.1f}, {100 * high:.1f}]"

    (of_other,) = (name for name in map(str, wide) if name.startswith(OTHER))
    low, middle, high = np.percentile(steps / measured[of_other], [25, 50, 75])
    floor, masked = (share(quantity)[1] for quantity in (FLOOR, MASKED))
    lines = [
        f"  {middle:7.2f} [{low:.2f}, {high:.2f}]  of the time that it takes in {of_other.removeprefix(OTHER)}",
        f"  {floor}  its matrix products at the speed of a large one, the floor",
        f"  {masked}  the same with the pairs that the mask hides",
        f"  {share('sampling')[1]}  sampling as many tokens of the task, beside the step",
    ]
    for prefix, heading in (("part: ", "by part"), ("operator: ", "by operator, under the profiler")):
        names = [name for name in map(str, wide) if name.startswith(prefix)]
        if prefix == "part: ":
            shares = {name: share(name) for name in names}
        else:
            values = wide[names].max()  # there is one
            shares = {name: (float(values[name]), f"{100 * values[name]:5.1f} %") for name in names}
        lines.append(f"  {heading}")
        ordered = sorted(shares.items(), key=lambda item: -item[1][0])
        lines += [f"    {said}  {name.removeprefix(prefix)}" for name, (_, said) in ordered]
    return lines


def _milliseconds(steps: pd.Series) -> str:
    low, middle, high = np.percentile(1e3 * steps, [25, 50, 75])
    return f"{middle:.2f} ms [{low:.2f}, {high:.2f}] a step, median and quartiles of {len(steps)} rounds"
