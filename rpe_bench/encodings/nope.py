"""No position: Haviv et al. 2022 (arXiv 2203.16634); Kazemnejad et al. 2023 (arXiv 2305.19466)."""

from rpe_bench.encodings.base import Encoding


class NoPE(Encoding):
    """No position: logit_ij = q_i.k_j / sqrt(K); a causal mask alone tells tokens apart.

    A bidirectional model without positions is permutation-equivariant, so it cannot tell orders apart at all.
    """

    year = 2022
    source = "Haviv et al. 2022, arXiv 2203.16634"
    axes = None
