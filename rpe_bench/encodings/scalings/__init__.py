"""Scalings of RoPE: strategies, one paper a file, that a config tells apart by their `name`."""

from typing import Annotated

from pydantic import Discriminator

from rpe_bench.encodings.scalings.by_parts import ByParts
from rpe_bench.encodings.scalings.dynamic_ntk import DynamicNTK
from rpe_bench.encodings.scalings.linear import Linear
from rpe_bench.encodings.scalings.llama3 import Llama3
from rpe_bench.encodings.scalings.longrope import LongRoPE
from rpe_bench.encodings.scalings.ntk import NTK
from rpe_bench.encodings.scalings.yarn import YaRN

AnyScaling = Annotated[
    Linear | NTK | DynamicNTK | ByParts | YaRN | LongRoPE | Llama3,
    Discriminator("name"),
]
