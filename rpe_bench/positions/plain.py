"""The positions that the task gives: those of the tokens in the sequence, or of the cells of a grid."""

from rpe_bench.positions.base import Remap


class Plain(Remap):
    """p <- p."""
