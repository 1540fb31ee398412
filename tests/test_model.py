import math

import pytest
import torch
from support import encodings_for
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from rpe_bench.components import make_encoding
from rpe_bench.encodings.base import Context, Encoding, Geometry
from rpe_bench.model import Transformer
from rpe_bench.run import build_model

V, C, LAYERS, DIM, HEADS = 11, 5, 3, 16, 4


def transformer(encodings: list[Encoding] | None = None, causal: bool = True, layers: int = LAYERS) -> Transformer:
    encodings = encodings or [Encoding(geometry(causal))]
    sizes = {"vocabulary": V, "classes": C, "layers": layers, "dim": DIM, "heads": HEADS}
    return Transformer(**sizes, causal=causal, encodings=encodings)


def geometry(causal: bool = True) -> Geometry:
    return Geometry(DIM, HEADS, train_length=8, max_length=16, causal=causal, layers=LAYERS)


def trunk(model: Transformer) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encodings.")}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("task", ["copy", "adjacency_tutorial", "grid_lookup"])
def test_every_encoding_starts_from_the_same_trunk(make_config, task: str) -> None:
    first, *others = (build_model(make_config(task, name)) for name in encodings_for(task))
    assert all(same(trunk(first), trunk(other)) for other in others)


def test_the_seed_alone_decides_the_weights(make_config) -> None:
    models = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        models.append(build_model(make_config("copy", "t5", {"seed": 3})))
    assert same(models[0].state_dict(), models[1].state_dict())
    other = build_model(make_config("copy", "t5", {"seed": 4})).state_dict()
    for name, tensor in models[0].state_dict().items():
        constant = "norm" in name or name.endswith("bias")
        assert torch.equal(tensor, other[name]) == constant, name


def test_what_the_encoding_draws_does_not_reach_the_trunk() -> None:
    class Greedy(Encoding):
        def reset_parameters(self, generator: torch.Generator) -> None:
            torch.randn(1000, generator=generator)

    plain, greedy = transformer(), transformer([Greedy(geometry()), Greedy(geometry())])
    for model in (plain, greedy):
        model.reset_parameters(7)
    assert same(trunk(plain), trunk(greedy))


@pytest.mark.parametrize("name", encodings_for("copy"))
def test_the_trunk_does_not_reach_what_the_encoding_draws(make_config, name: str) -> None:
    config = make_config("copy", name, {"seed": 3, "model.layers": 3})
    sizes = {"dim": 16, "heads": 2, "train_length": 33, "max_length": 65, "causal": True}
    alone = make_encoding(name, **sizes, seed=3)
    assert same(build_model(config).encodings[0].state_dict(), alone.state_dict())


def test_layers_with_modules_of_their_own_draw_different_values(make_config) -> None:
    first, second = build_model(make_config("copy", "relative_bias")).encodings
    assert not torch.equal(first.table_NH, second.table_NH)


def test_reset_parameters_leaves_nothing_of_what_was_there() -> None:
    """A model built on the meta device has nothing but what is drawn; a trained one keeps nothing of its training."""
    expected = transformer()
    expected.reset_parameters(0)
    with torch.device("meta"):
        model = transformer()
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    model.reset_parameters(0)
    pairs = zip(model.state_dict().items(), expected.state_dict().values(), strict=True)
    assert not [name for (name, tensor), drawn in pairs if not torch.equal(tensor, drawn)]


def test_initial_values() -> None:
    sizes = {"vocabulary": 100, "classes": 50, "layers": 2, "dim": 64, "heads": 4}
    model = Transformer(**sizes, causal=True, encodings=[Encoding(geometry())], embedding_std=3.0)
    model.reset_parameters(0)
    assert model.tokens.weight.std().item() == pytest.approx(3, rel=0.05)
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert len(linear) == 2 * 4 + 1
    for module in linear:
        bound = module.in_features**-0.5
        assert 0.99 * bound < module.weight.abs().max() <= bound
        assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert module.bias is None or not module.bias.any()


def test_number_of_parameters() -> None:
    attention, mlp, norm = 4 * DIM**2, 8 * DIM**2 + 5 * DIM, 2 * DIM
    expected = V * DIM + LAYERS * (attention + mlp + 2 * norm) + norm + DIM * C
    assert sum(parameter.numel() for parameter in transformer().parameters()) == expected


@pytest.mark.parametrize("causal", [True, False])
def test_forward_is_a_pre_norm_transformer(causal: bool) -> None:
    model = transformer(causal=causal).double()
    w = model.state_dict()
    for tensor in w.values():
        tensor.normal_()
    tokens = torch.randint(V, (2, 6))

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, (DIM,), w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["tokens.weight"][tokens]
    for n in range(LAYERS):
        name = f"blocks.{n}"
        q, k, v = (norm(x, f"{name}.attention_norm") @ w[f"{name}.attention.qkv.weight"].T).chunk(3, dim=-1)
        mixed = []
        for head in range(HEADS):
            part = slice(4 * head, 4 * head + 4)
            scores = q[..., part] @ k[..., part].mT / 2
            if causal:
                scores = scores + torch.full((6, 6), -math.inf).triu(1)
            mixed.append(scores.softmax(-1) @ v[..., part])
        x = x + torch.cat(mixed, dim=-1) @ w[f"{name}.attention.out.weight"].T
        hidden = norm(x, f"{name}.mlp_norm") @ w[f"{name}.mlp.0.weight"].T + w[f"{name}.mlp.0.bias"]
        x = x + gelu(hidden) @ w[f"{name}.mlp.2.weight"].T + w[f"{name}.mlp.2.bias"]
    torch.testing.assert_close(model(tokens), norm(x, "norm") @ w["answers.weight"].T, rtol=0, atol=1e-10)


def test_each_layer_is_served_by_its_module() -> None:
    """One module serves all layers; of one a layer, each serves its own; the embeddings are the first's."""

    class Spy(Encoding):
        def embed(self, x_BTD, positions=None, tokens_BT=None):
            served.append((self, "embed"))
            return x_BTD

        def bias(self, q_BHQK, k_BHSK, context):
            served.append((self, "layer"))

    for modules in ([Spy(geometry())], [Spy(geometry()) for _ in range(LAYERS)]):
        served: list[tuple[Encoding, str]] = []
        transformer(modules)(torch.zeros(1, 3, dtype=torch.int64))
        order = modules if len(modules) == LAYERS else modules * LAYERS
        assert served == [(modules[0], "embed"), *((module, "layer") for module in order)]


def test_what_an_encoding_is_told() -> None:
    """Positions, tokens, the layer's normalised input, its projections, and the scaled logits of content."""

    class Spy(Encoding):
        def embed(self, x_BTD, positions=None, tokens_BT=None):
            embedded.append((positions, tokens_BT))
            return x_BTD

        def bias(self, q_BHQK, k_BHSK, context):
            contexts.append(context)
            q, k = context.project(context.x_BTD)  # (B, T, H, K)
            torch.testing.assert_close(q.transpose(1, 2), q_BHQK)
            torch.testing.assert_close(k.transpose(1, 2), k_BHSK)
            torch.testing.assert_close(context.content_BHQS, q_BHQK @ k_BHSK.mT / 2)

    embedded: list[tuple[Tensor, Tensor]] = []
    contexts: list[Context] = []
    model = transformer([Spy(geometry())])
    model.reset_parameters(0)
    tokens, positions = torch.randint(V, (2, 5)), torch.arange(5) * 2
    model(tokens, positions)
    assert embedded[0][0] is positions and embedded[0][1] is tokens
    assert len(contexts) == LAYERS
    for context in contexts:
        assert context.positions is positions and context.tokens_BT is tokens
        assert (context.length, context.causal) == (5, True)
        torch.testing.assert_close(context.x_BTD.mean(-1), torch.zeros(2, 5), rtol=0, atol=1e-6)
    assert contexts[0].memo is contexts[1].memo
    model(tokens, positions)
    assert contexts[LAYERS].memo is not contexts[0].memo


@pytest.mark.parametrize("asked", [[], [9], [0, 3, 4, 11], list(range(12)), [7, 7, 2]], ids=str)
def test_the_tokens_asked_for_have_the_logits_and_gradients_that_they_have_among_all(asked: list[int]) -> None:
    model = transformer().double()
    model.reset_parameters(0)
    tokens, rows = torch.randint(V, (2, 6)), torch.tensor(asked, dtype=torch.int64)
    toward = torch.randn(len(asked), C, dtype=torch.float64)
    outputs = model(tokens, None, rows), model(tokens).flatten(0, 1)[rows]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
    found, expected = (torch.autograd.grad((out * toward).sum(), list(model.parameters())) for out in outputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_last_layer_does_no_more_than_is_asked_for() -> None:
    model, widths = transformer(), []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda _, given, output: widths.append(tuple(output.shape)))
    model(torch.zeros(2, 6, dtype=torch.int64), None, torch.tensor([1, 8, 9]))
    assert widths == [(2, 6, DIM)] * (LAYERS - 1) + [(3, DIM)]
