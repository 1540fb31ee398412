"""Tables and figures of what encodings cost, as functions of the CSVs that `rpe-bench profile` writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rpe_bench.files import write_text
from rpe_bench.report.curves import faded_but, others, panels_of, titles_of
from rpe_bench.report.figures import Style, looks_of, paper_style, save_figure
from rpe_bench.report.growth import BASELINE, RULES, claims, growth, learned, sentences, summary
from rpe_bench.report.layout import compose, log_axis

NAMES = {"training": "training step", "evaluation": "evaluation"}
LABELS = {"seconds": ("time", "s"), "mib": ("memory beyond the model", "MiB")}


class Profile:
    """What was measured, and what follows from it.

    Args:
        cells, times: the tables cells.csv and times.csv.
        about: a line on what was measured where, for captions.
    """

    def __init__(self, cells: pd.DataFrame, times: pd.DataFrame, about: str) -> None:
        self.costs = summary(cells, times)
        self.growth = growth(self.costs)
        self.claims = claims(self.costs, times)
        self.about = about

    @classmethod
    def read(cls, directory: Path, about: str) -> "Profile":
        text = {"kind": "str", "encoding": "str", "place": "str", "problem": "str"}
        cells = pd.read_csv(directory / "cells.csv", dtype=text, keep_default_na=False, na_values={"peak_bytes": [""]})
        numbers = ["peak_bytes", "seconds", "parameters", "encoding_parameters"]
        cells[numbers] = cells[numbers].apply(pd.to_numeric)
        times = pd.read_csv(directory / "times.csv", dtype={"kind": "str", "encoding": "str"}, keep_default_na=False)
        return cls(cells, times, about)

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(self.costs["kind"]))

    @property
    def left_out(self) -> list[str]:
        """What was not measured, a line for each encoding and reason."""
        missing = self.costs[self.costs["problem"] != ""]
        lines = []
        for (kind, name, problem), part in missing.groupby(["kind", "encoding", "problem"], sort=False):
            lines.append(f"{name}, {kind} at {', '.join(map(str, part['length']))}: {problem}")
        return lines

    def tables(self) -> dict[str, pd.DataFrame]:
        """Title -> a table of text, a row an encoding and a column a length."""
        found = {}
        for kind in self.kinds:
            found[f"{NAMES[kind]}: time, as a ratio to {BASELINE}"] = self._wide(kind, _time)
            found[f"{NAMES[kind]}: memory beyond the model, in MiB more than {BASELINE}"] = self._wide(kind, _memory)
        return found

    def _wide(self, kind: str, cell: Any) -> pd.DataFrame:
        part = self.costs[self.costs["kind"] == kind]
        whole, more = ("seconds", "more_seconds") if cell is _time else ("mib", "more_mib")
        fits = self.growth[self.growth["kind"] == kind].set_index(["encoding", "quantity"])
        rows = {}
        for name in dict.fromkeys(part["encoding"]):
            mine = part[part["encoding"] == name].set_index("length")
            row = {"place": mine["place"].iloc[0]}
            row |= {str(length): cell(mine.loc[length]) for length in sorted(part["length"].unique())}
            row["grows as"] = _power(fits.loc[(name, whole)])
            row["what it adds"] = "" if name == BASELINE else _power(fits.loc[(name, more)])
            if cell is _memory:
                row["learns"] = f"{mine['encoding_parameters'].max():,.0f}".replace("nan", "")
            rows[name] = row
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("encoding")

    def text(self) -> str:
        """Tables, claims and what was left out, for a terminal."""
        blocks = [f"{title}\n{table.to_string()}" for title, table in self.tables().items()]
        return "\n\n".join([self.about, *blocks, "\n".join(["What is said, and what holds here", *self._claims()])])

    def markdown(self) -> str:
        blocks = ["# What encodings cost", f"{self.about}.", RULES]
        for title, table in self.tables().items():
            blocks += [f"## {title[0].upper()}{title[1:]}", table.to_markdown(disable_numparse=True)]
        blocks += ["## What is said, and what holds here", "\n".join(f"- {line}" for line in self._claims())]
        return "\n\n".join(blocks) + "\n"

    def _claims(self) -> list[str]:
        return [*sentences(self.claims), learned(self.costs), *(f"left out: {line}" for line in self.left_out)]

    def write(self, directory: Path) -> list[Path]:
        """profile.csv, growth.csv, claims.csv, profile.md, and a figure for each kind of time and of memory."""
        tables = {"profile": self.costs, "growth": self.growth, "claims": self.claims}
        paths = []
        for name, table in tables.items():
            paths.append(directory / f"{name}.csv")
            write_text(paths[-1], table.to_csv(index=False, lineterminator="\n"))
        paths.append(directory / "profile.md")
        write_text(paths[-1], self.markdown())
        looks = looks_of(list(dict.fromkeys(self.costs["encoding"])))
        for kind in self.kinds:
            for quantity, (name, _) in LABELS.items():
                if (self.costs.loc[self.costs["kind"] == kind, quantity] > 0).any():  # memory may be too little
                    stem = directory / f"{kind}-{name.split()[0]}"
                    paths += save_figure(self.figure(kind, quantity, looks), stem)
        return paths

    def figure(self, kind: str, quantity: str, looks: Mapping[str, Style]) -> Figure:
        """Time or memory against length, both logarithmic; a line an encoding, which its exponent is beside.

        Bands are quartiles over rounds. Many encodings have a panel a family, with all others faded behind it.
        """
        rows = self.costs[(self.costs["kind"] == kind) & (self.costs[quantity] > 0)]
        fits = self.growth[(self.growth["kind"] == kind) & (self.growth["quantity"] == quantity)]
        exponents = fits.set_index("encoding")["exponent"]
        drawn = set(rows["encoding"])
        name, unit = LABELS[quantity]
        with paper_style():
            figure = Figure()
            titles = titles_of(looks, drawn)
            panels, columns = panels_of(figure, titles)
            own: list[list[Line2D]] = []
            for panel, title in zip(panels, titles, strict=True):
                mine = {label: look for label, look in faded_but(looks, title).items() if label in drawn}
                lines = [_line(panel, rows, quantity, label, look, exponents) for label, look in mine.items()]
                own.append([line for line in lines if line is not None])
                panel.set_xlabel("length / tokens")
            log_axis(panels, f"{name} / {unit}")
            for panel in panels[columns::columns]:
                panel.set_ylabel(f"{name} / {unit}")
            shared = others(looks, drawn) if len(panels) == 1 else []
            handles = [*own[0], *shared] if len(panels) == 1 else shared
            batch = int(rows["batch"].iloc[0])
            caption = f"{batch} example{'s' if batch > 1 else ''} at once; in brackets, the exponent; {self.about}"
            lengths = sorted(rows["length"].unique())
            more: dict[str, Any] = {} if len(panels) == 1 else {"columns": columns, "own": own}
            height = 1.95 if len(panels) == 1 else 1.4
            compose(figure, panels, handles, f"{NAMES[kind]}: {name}", caption, height, lengths=lengths, **more)
        return figure


def _line(axes: Any, rows: pd.DataFrame, quantity: str, label: str, look: Style, exponents: pd.Series) -> Line2D | None:
    """Draw an encoding; what stands for it in the legend, if it is not faded."""
    line = rows[rows["encoding"] == label]
    depth = 1.5 if look.faded else 3
    axes.plot(line["length"], line[quantity], **look.line(), markersize=3.5, zorder=depth)
    if look.faded:
        return None
    if f"{quantity}_low" in line:
        band: Mapping[str, Any] = {"color": look.colour, "alpha": 0.15, "linewidth": 0, "zorder": 2}
        axes.fill_between(line["length"], line[f"{quantity}_low"], line[f"{quantity}_high"], **band)
    exponent = exponents.get(label, np.nan)
    text = label if np.isnan(exponent) else f"{label} ({exponent:.2f})"
    return Line2D([], [], **look.line(), markersize=3.6, label=text)


def _time(row: pd.Series) -> str:
    if not row["n"]:
        return "-"
    if row.name is not None and row["encoding"] == BASELINE:
        return f"{1e3 * row['seconds']:.3g} ms"
    return f"{row['ratio']:.2f} ±{(row['ratio_high'] - row['ratio_low']) / 2:.2f}"


def _memory(row: pd.Series) -> str:
    if np.isnan(row["mib"]):
        return "-"
    return f"{row['mib']:.1f}" if row["encoding"] == BASELINE else f"{row['more_mib']:+.1f}"


def _power(fit: pd.Series) -> str:
    if np.isnan(fit["exponent"]):
        return "nothing seen" if fit["order"] == "O(1)" else "-"
    return f"N^{fit['exponent']:.2f}"
