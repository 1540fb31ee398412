"""XLNet's positions: Yang et al. 2019, "Generalized autoregressive pretraining" (arXiv 1906.08237)."""

from rpe_bench.encodings.transformer_xl import TransformerXL


class XLNet(TransformerXL):
    """logit_ij = ((q_i + u).k_j + (q_i + v).(W_R r(i - j))) / sqrt(K): Transformer-XL's, where tokens see both ways.

    The distance i - j is negative for keys that follow; the sinusoid tells the two sides apart, its sines being odd. A
    causal model is XLNet's "uni" attention. XLNet's third term, (q_i + s).e of whether i and j are in one segment, is
    no matter of position, and is left out.

    Options as of Transformer-XL; clamp_len counts on either side.
    """

    source = "Yang et al. 2019, arXiv 1906.08237"
    causal_only = False
