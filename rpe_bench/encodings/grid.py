"""What encodings of grids share: positions (B, T, 2), a cell (y, x) for each token."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


def grid_positions(positions: Tensor | None) -> Tensor:
    """The positions, if they are (B, T, 2); else ValueError, since an index does not say which grid it counts."""
    if positions is None or positions.dim() != 3 or positions.shape[-1] != 2:
        given = "none" if positions is None else f"{tuple(positions.shape)}"
        raise ValueError(f"this encoding takes positions (B, T, 2), the (y, x) of each token, and was given {given}")
    return positions


def kept(memo: dict[Any, Any], key: Any, positions: Tensor, build: Callable[[], T]) -> T:
    """What `build` makes of these positions: built once for all layers that share the memo."""
    found = memo.get(key)
    if found is None or found[0] is not positions:
        found = memo[key] = positions, build()
    return found[1]


def layouts(positions_BT2: Tensor, memo: dict[Any, Any]) -> tuple[Tensor, Tensor]:
    """The different layouts of a batch, (U, T, 2), and which of them each example has, (B,).

    The examples of a batch have few grids between them; what depends on positions alone is computed once for each.
    """

    def build() -> tuple[Tensor, Tensor]:
        flat, which_B = positions_BT2.flatten(1).unique(dim=0, return_inverse=True)
        return flat.unflatten(1, positions_BT2.shape[1:]), which_B

    return kept(memo, layouts, positions_BT2, build)


def of_examples(values_U: Tensor, which_B: Tensor) -> Tensor:
    """What was computed for each layout, for each example: (B, ...), or (1, ...) where all have the same."""
    return values_U if len(values_U) == 1 else values_U.index_select(0, which_B)


def sides(name: str, given: Sequence[int] | None, otherwise: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns, as given or those of a grid; ValueError where they are not two positive integers."""
    if given is None and len(otherwise) != 2:
        raise ValueError(f"takes 2 axes of position, and was given {len(otherwise)}")
    rows_columns = tuple(otherwise if given is None else given)
    if len(rows_columns) != 2 or any(type(side) is not int or side < 1 for side in rows_columns):
        raise ValueError(f"{name}={given} must be two positive integers, [rows, columns]")
    return rows_columns
