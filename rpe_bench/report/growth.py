"""What encodings cost beside no position, how that grows with the length, and which claims about it hold here.

Functions of the tables cells.csv and times.csv that `rpe-bench profile` writes; see rpe_bench.profiling.account.

Rules, which `RULES` states for a reader too:

- A ratio or a difference is taken within a round, against `nope` of that round; then comes the median over rounds with
  quartiles.
- What an encoding adds can be seen at a length where the lower quartile of its ratio is above 1.02; of memory, where it
  adds more than 1 MiB and more than 2 % of `nope`'s.
- An exponent is the slope of the least-squares line of log cost over log length: of a whole cost over lengths from an
  eighth of the longest on, of what is added over the lengths from which on it can be seen at every one. It takes 3.
- An exponent is O(1), O(N) or O(N^2) where it lies within 0.35 of 0, 1 or 2. What is never seen to be added is O(1).
- One kind of encoding is slower than another at a length where, over rounds, the lower quartile of the difference of
  their median ratios is above 0, and its median above 0.01.
- A claim that something grows cannot be told where nothing is seen to be added.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from rpe_bench.report.load import in_order

BASELINE = "nope"

PLACES = ("no position", "embedding", "rotation", "distance bias", "other bias", "content")
"""Where an encoding brings positions in, as the tables are ordered by it."""

LEAST_RATIO = 1.02
LEAST_MIB = 1.0
LEAST_SHARE = 0.02
POINTS = 3
NEAR = 0.35
APART = 0.01

ORDERS = {0: "O(1)", 1: "O(N)", 2: "O(N^2)"}

CLAIMED = {"embedding": ("O(N)",), "rotation": ("O(1)",), "distance bias": ("O(N)", "O(N^2)")}
"""Place -> how memory is said to grow with the length N: with the table of N vectors; not at all; with the number of
offsets, or of pairs where the matrix is held."""

LATENCY = (("distance bias", "rotation"), ("rotation", "embedding"))
"""What is said to be slower than what."""

RULES = (
    "Ratios and differences are to nope of the same round: median over rounds, ± half of the interquartile range."
    " Something is added where the lower quartile of the ratio is above 1.02, or where memory beyond the model is more"
    " than nope's by over 1 MiB and 2 %. Exponents: least squares of log cost over log length; of a whole cost from an"
    " eighth of the longest length on, of what is added over the lengths from which on it is seen at every one, at"
    " least 3. O(1), O(N), O(N^2): within 0.35 of 0, 1, 2. One kind is slower than another where the lower quartile of"
    " the difference of their median ratios is above 0, and its median above 0.01."
)


def summary(cells: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: kind, length, encoding, place, batch; n (rounds), seconds, ratio and more_seconds (than `nope`),
    each with its quartiles in *_low and *_high; mib and more_mib; parameters, encoding_parameters; problem.

    Missing where it was not measured. Kinds and lengths in order, encodings by place and then by name, `nope` first.
    """
    rows = []
    timed = {key: part for key, part in times.groupby(["kind", "length"])}
    for (kind, length), part in cells.groupby(["kind", "length"], sort=False):
        wide = _rounds(timed.get((kind, length)))
        base = part.loc[part["encoding"] == BASELINE, "peak_bytes"].astype(float)
        for cell in part.to_dict("records"):
            row = {key: cell[key] for key in ("kind", "length", "encoding", "place", "batch")}
            name = cell["encoding"]
            mine = wide[name].dropna() if name in wide else pd.Series(dtype=float)
            nope = wide.loc[mine.index, BASELINE] if len(mine) else mine
            row["n"] = len(mine)
            for quantity, values in (("seconds", mine), ("ratio", mine / nope), ("more_seconds", mine - nope)):
                row |= _spread(quantity, values)
            row["mib"] = cell["peak_bytes"] / 2**20
            row["more_mib"] = (cell["peak_bytes"] - base.iloc[0]) / 2**20 if len(base) else np.nan
            row |= {key: cell[key] for key in ("parameters", "encoding_parameters", "problem")}
            rows.append(row)
    found = pd.DataFrame(rows)
    kinds = list(dict.fromkeys(found["kind"]))
    names = in_order(found["encoding"])
    keys = pd.DataFrame(
        {
            "kind": found["kind"].map(kinds.index),
            "length": found["length"],
            "place": found["place"].map(PLACES.index),
            "first": found["encoding"] != BASELINE,
            "name": found["encoding"].map(names.index),
        }
    )
    order = keys.sort_values(["kind", "length", "place", "first", "name"]).index
    return found.loc[order].reset_index(drop=True)


def _rounds(times: pd.DataFrame | None) -> pd.DataFrame:
    """Seconds by round and encoding."""
    if times is None:
        return pd.DataFrame()
    return times.pivot(index="round", columns="encoding", values="seconds")


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    numbers = np.asarray(list(values), dtype=float)
    middle, low, high = np.percentile(numbers, [50, 25, 75]) if len(numbers) else (np.nan,) * 3
    return {name: float(middle), f"{name}_low": float(low), f"{name}_high": float(high)}


# How costs grow

QUANTITIES = ("seconds", "more_seconds", "mib", "more_mib", "encoding_parameters")


def growth(costs: pd.DataFrame) -> pd.DataFrame:
    """One row for each kind, encoding and quantity of a `summary`: kind, encoding, place, quantity, exponent, first and
    last length of the fit, points, order (one of ORDERS, or N^x), or why there is none.
    """
    rows = []
    for (kind, name, place), part in costs.groupby(["kind", "encoding", "place"], sort=False):
        for quantity in QUANTITIES:
            about = {"kind": kind, "encoding": name, "place": place, "quantity": quantity}
            base = costs[(costs["kind"] == kind) & (costs["encoding"] == BASELINE)]
            rows.append(about | _fit(part, quantity, base))
    return pd.DataFrame(rows)


def _fit(part: pd.DataFrame, quantity: str, base: pd.DataFrame) -> dict[str, object]:
    part = part[part[quantity].notna()]
    lengths, values = part["length"].to_numpy(dtype=float), part[quantity].to_numpy(dtype=float)
    none = {"exponent": np.nan, "first": np.nan, "last": np.nan, "points": 0}
    if not len(lengths):
        return {**none, "order": "not measured"}
    if quantity.startswith("more"):
        chosen = _seen(part, quantity, base)
        if not chosen[-1]:
            return {**none, "last": lengths[-1], "order": ORDERS[0] if len(lengths) >= POINTS else "too few lengths"}
        first = int(np.flatnonzero(~chosen).max(initial=-1)) + 1
    elif quantity == "encoding_parameters":
        if not values.any():
            return {**none, "order": ORDERS[0]}
        first = 0
    else:
        first = int(np.argmax(lengths >= lengths[-1] / 8))
    lengths, values = lengths[first:], values[first:]
    about = {"first": lengths[0], "last": lengths[-1], "points": len(lengths)}
    if len(lengths) < POINTS or (values <= 0).any():
        return {**none, **about, "order": "too few lengths"}
    exponent = float(np.polyfit(np.log(lengths), np.log(values), 1)[0])
    return {"exponent": exponent, **about, "order": order_of(exponent)}


def _seen(part: pd.DataFrame, quantity: str, base: pd.DataFrame) -> np.ndarray:
    """At which lengths something is added."""
    if quantity == "more_seconds":
        found: np.ndarray = part["ratio_low"].to_numpy() > LEAST_RATIO
        return found
    nope = part["length"].map(base.set_index("length")["mib"]).to_numpy(dtype=float)
    found = part["more_mib"].to_numpy() > np.maximum(LEAST_MIB, LEAST_SHARE * nope)
    return found


def order_of(exponent: float) -> str:
    near = [name for power, name in ORDERS.items() if abs(exponent - power) <= NEAR]
    return near[0] if near else f"N^{exponent:.2f}"


# Claims


def claims(costs: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """One row for each claim and what it is about: claim, kind, of (an encoding, or a length), found, verdict.

    The verdict is `holds`, `does not hold` or `cannot be told`.
    """
    rows = []
    fits = growth(costs)
    for place, allowed in CLAIMED.items():
        claim = f"memory of {_plural(place)} grows as {' or '.join(allowed)}"
        for fit in fits[(fits["quantity"] == "more_mib") & (fits["place"] == place)].to_dict("records"):
            # Growth may be there below what can be seen.
            known = np.isfinite(fit["exponent"]) or fit["order"] in allowed
            verdict = "cannot be told" if not known else "holds" if fit["order"] in allowed else "does not hold"
            rows.append(
                {"claim": claim, "kind": fit["kind"], "of": fit["encoding"], "found": _said(fit)} | _is(verdict)
            )
    places = costs.drop_duplicates("encoding").set_index("encoding")["place"]
    for kind in dict.fromkeys(costs["kind"]):
        for slower, faster in LATENCY:
            claim = f"{_plural(slower)} are slower than {_plural(faster)}"
            for length in sorted(costs.loc[costs["kind"] == kind, "length"].unique()):
                part = times[(times["kind"] == kind) & (times["length"] == length)]
                found, verdict = _slower(_rounds(part), places, slower, faster)
                rows.append({"claim": claim, "kind": kind, "of": str(length), "found": found} | _is(verdict))
    return pd.DataFrame(rows, columns=["claim", "kind", "of", "found", "verdict"])


def _is(verdict: str) -> dict[str, str]:
    return {"verdict": verdict}


def _plural(place: str) -> str:
    return f"{place}es" if place.endswith("s") else f"{place}s"


def _said(fit: dict) -> str:
    if np.isnan(fit["exponent"]):
        return f"nothing to be seen up to {fit['last']:.0f}" if fit["order"] == ORDERS[0] else fit["order"]
    return f"N^{fit['exponent']:.2f} from {fit['first']:.0f} on"


def _slower(wide: pd.DataFrame, places: pd.Series, slower: str, faster: str) -> tuple[str, str]:
    names = [[name for name in map(str, wide) if places[name] == place] for place in (slower, faster)]
    if not all(names):
        return "not measured", "cannot be told"
    # Rounds that all took part in: a slow encoding that leaves early would change the median by leaving.
    whole = wide.dropna()
    one, other = (whole[part].div(whole[BASELINE], axis=0).median(axis=1) for part in names)
    if len(whole) < POINTS:
        return "too few rounds that all took part in", "cannot be told"
    spread = _spread("by", one - other)
    said = f"{one.median():.3f} and {other.median():.3f} of {BASELINE}, {len(names[0])} and {len(names[1])} encodings"
    if spread["by_low"] > 0 and spread["by"] > APART:
        return said, "holds"
    if spread["by_high"] < 0 and spread["by"] < -APART:
        return said, "does not hold"
    return f"{said}: too close", "cannot be told"


def sentences(found: pd.DataFrame) -> list[str]:
    """The claims of a table of `claims`, a line each and kind."""
    lines = []
    for (claim, kind), part in found.groupby(["claim", "kind"], sort=False):
        if part["of"].str.isdigit().all():
            lines.append(f"{kind}: {claim}: {_by_length(part)}")
        else:
            lines.append(f"{kind}: {claim}: {_by_encoding(part)}")
    return lines


def _by_length(part: pd.DataFrame) -> str:
    lengths, holds = part["of"].tolist(), (part["verdict"] == "holds").tolist()
    not_known = (part["verdict"] == "cannot be told").all()
    last = next((i for i in reversed(range(len(holds))) if not holds[i]), -1)
    if last == -1:
        said = "holds at every length"
    elif last < len(holds) - 1:
        said = f"holds from {lengths[last + 1]} on"
    elif not_known:
        said = "cannot be told"
    elif any(holds):
        said = f"holds at {', '.join(n for n, held in zip(lengths, holds, strict=True) if held)} alone"
    else:
        said = "does not hold"
    return f"{said} (at {lengths[-1]}: {part['found'].iloc[-1]})"


def _by_encoding(part: pd.DataFrame) -> str:
    told = part[part["verdict"] != "cannot be told"]
    holds = int((told["verdict"] == "holds").sum())
    words = {"holds": "for", "does not hold": "not for", "cannot be told": "not to be told for"}
    said = [f"holds for {holds} of {len(told)}"] if len(told) else []
    for verdict, word in words.items():
        alike = part[part["verdict"] == verdict].groupby("found", sort=False)["of"].agg(", ".join)
        said += [f"{word} {'; '.join(f'{names} ({found})' for found, names in alike.items())}"] if len(alike) else []
    return "; ".join(said)


def learned(costs: pd.DataFrame) -> str:
    """How the numbers that encodings learn grow, in a sentence."""
    fits = growth(costs).drop_duplicates(["encoding", "quantity"])
    grown = fits[(fits["quantity"] == "encoding_parameters") & (fits["exponent"].abs() > 0.05)]
    named = [f"{fit.encoding} (N^{fit.exponent:.2f})" for fit in grown.itertuples()]
    return f"numbers learned grow with the length in {', '.join(named) or 'none'}"
