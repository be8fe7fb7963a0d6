"""The operator of PyTorch and the attention function of Hugging Face's transformers: on a GPU if PyTorch finds one,
otherwise on the virtual GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CUMULATIVE = [0, 10, 10, 40]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half().to(DEVICE)


Q, K, V = normal(2, 40, 4, 128), normal(2, 40, 2, 128, seed=1), normal(2, 40, 2, 128, seed=2)
SLOPES, SINKS = torch.tensor([0.5, 0.25, 0.125, 0.0625]).to(DEVICE), torch.tensor([0.0, 1, -2, 4]).to(DEVICE)
FIELDS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True, "softmax_scale": 0.1},
    "lse": {"return_lse": True, "kernel": "grouped_heads"},
    "window": {"window": (9, 5)},
    "scores": {"softcap": 3.0, "alibi_slopes": SLOPES, "sinks": SINKS},
    "lengths": {"lengths": [30, 40], "lengths_kv": torch.tensor([20, 40]), "causal": True},
    "packed": {"cu_seqlens_q": torch.tensor(CUMULATIVE).to(DEVICE), "max_seqlen_q": 64, "return_lse": True},
}


def arrays_for(fields: dict[str, Any]) -> list[torch.Tensor]:
    return [x[0] if "cu_seqlens_q" in fields else x for x in (Q, K, V)]


def tensors(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    """torch.compile counts how often one function is compiled again, over all tests."""
    torch.compiler.reset()


@pytest.fixture(scope="module")
def operator(fl: ModuleType) -> Callable[..., Any]:
    """flash_ladder.pytorch.forward()"""
    del fl  # which puts the package on the path
    from flash_ladder.pytorch import forward

    return forward


def refuse_if_no_version_solves_it(
    fl: ModuleType, operator: Callable[..., Any], arrays: list[torch.Tensor], fields: dict[str, Any]
) -> None:
    """Skips what no version solves yet, once the operator has refused it in the same words."""
    try:
        fl.which(*arrays, **fields)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            operator(*arrays, **fields)
        pytest.skip(f"{error}")


@pytest.mark.parametrize("case", FIELDS)
def test_compiled_and_not_it_is_forward(fl: ModuleType, operator: Callable[..., Any], case: str) -> None:
    fields, arrays = FIELDS[case], arrays_for(FIELDS[case])
    refuse_if_no_version_solves_it(fl, operator, arrays, fields)
    expected = tensors(fl.forward(*arrays, **fields))
    whole = torch.compile(lambda *given: operator(*given, **fields), fullgraph=True, backend="aot_eager")
    for found in (tensors(operator(*arrays, **fields)), tensors(whole(*arrays))):
        assert len(found) == len(expected)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_default_compiler(fl: ModuleType, operator: Callable[..., Any]) -> None:
    """Inductor passes on an operator's arguments by name, beside its own."""

    @torch.compile(fullgraph=True)
    def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return operator(2 * q, k, v, causal=True, kernel="scores", sinks=SINKS) + 1

    assert torch.equal(whole(Q, K, V), fl.forward(2 * Q, K, V, causal=True, kernel="scores", sinks=SINKS) + 1)


def test_values_with_another_head_dim(fl: ModuleType, operator: Callable[..., Any]) -> None:
    q, k = (torch.cat([array, array[..., :64]], dim=-1) for array in (Q, K))
    expected = fl.forward(q, k, V)
    whole = torch.compile(lambda *given: operator(*given), fullgraph=True, backend="aot_eager")
    assert expected.shape == V.shape[:1] + q.shape[1:3] + V.shape[3:]
    assert torch.equal(operator(q, k, V), expected)
    assert torch.equal(whole(q, k, V), expected)
    torch.library.opcheck(torch.ops.flash_ladder.forward.default, (q, k, V), {"return_lse": True})


def test_new_numbers_do_not_compile_again(operator: Callable[..., Any]) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    whole = torch.compile(operator, fullgraph=True, backend=counter)
    for lengths in ([30, 40], [1, 7], [40, 0]):
        whole(Q, K, V, lengths=torch.tensor(lengths))
    assert counter.frame_count == 1


@pytest.mark.parametrize("case", FIELDS)
def test_opcheck(fl: ModuleType, operator: Callable[..., Any], case: str) -> None:
    refuse_if_no_version_solves_it(fl, operator, arrays_for(FIELDS[case]), FIELDS[case])
    fields = {name: torch.tensor(x) if isinstance(x, list) else x for name, x in FIELDS[case].items()}
    fields["kernel_name"] = fields.pop("kernel", None)
    torch.library.opcheck(torch.ops.flash_ladder.forward.default, arrays_for(fields), fields)


@pytest.mark.parametrize("compiled", [False, True])
def test_there_is_no_backward(operator: Callable[..., Any], compiled: bool) -> None:
    call = torch.compile(operator, fullgraph=True, backend="aot_eager") if compiled else operator
    with pytest.raises(Exception, match="flash_ladder::forward has no gradients; use "):
        call(Q.clone().requires_grad_(), K, V).sum().backward()
    with torch.no_grad():
        call(Q.clone().requires_grad_(), K, V)


# ---- Gradients ----

WHOLE_TILES = [normal(2, rows, 3, 128, seed=seed) for seed, rows in ((3, 64), (4, 128), (5, 128))]


def expected_gradients(
    dout: torch.Tensor,
    *arrays: torch.Tensor,
    scale: float = 128**-0.5,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Of q, k and v, and of the sinks if they are given, by PyTorch's own formulas in float64."""
    q, k, v = (x.double().requires_grad_() for x in arrays)
    of_k, of_v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, of_k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        aligned = torch.arange(q.shape[1]).to(q.device)[:, None] + k.shape[1] - q.shape[1]
        distance = (aligned - torch.arange(k.shape[1]).to(q.device)).abs()
        scores = scores - alibi_slopes[:, None, None].double() * distance
    left, right = window[0], 0 if causal else window[1]
    visible = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device)
    if right >= 0:
        visible = visible.tril(k.shape[1] - q.shape[1] + right)
    if left >= 0:
        visible = visible.triu(k.shape[1] - q.shape[1] - left)
    scores = scores.masked_fill(~visible, -torch.inf)
    of_sinks = None if sinks is None else sinks.double().requires_grad_()
    if of_sinks is not None:  # a score more, which has no value
        column = of_sinks[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, torch.where(visible.any(dim=1)[:, None], column, -torch.inf)], dim=-1)
    weights = torch.softmax(scores, dim=-1).nan_to_num()[..., : k.shape[1]]
    torch.einsum("bhij,bjhd->bihd", weights, of_v).backward(dout.double())
    return [x.grad for x in ((q, k, v) if of_sinks is None else (q, k, v, of_sinks))]


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_is_differentiable(operator: Callable[..., Any], compiled: bool) -> None:
    del operator
    from flash_ladder.pytorch import attention

    call = torch.compile(attention, fullgraph=True, backend="aot_eager") if compiled else attention
    arrays = [x.clone().requires_grad_() for x in WHOLE_TILES]
    dout = normal(2, 64, 3, 128, seed=6)
    out = call(*arrays, softmax_scale=0.1, deterministic=compiled)
    assert out.requires_grad
    out.backward(dout)
    for x, expected in zip(arrays, expected_gradients(dout, *WHOLE_TILES, scale=0.1), strict=True):
        assert x.grad.dtype == torch.float16
        assert (x.grad.double() - expected).abs().max() < 4e-3 * expected.abs().max()


def test_a_gradient_of_any_strides(operator: Callable[..., Any]) -> None:
    del operator
    from flash_ladder.pytorch import attention

    arrays = [x.clone().requires_grad_() for x in WHOLE_TILES]
    out, lse = attention(*arrays, return_lse=True)
    assert not lse.requires_grad
    out.sum().backward()  # the gradient is one number, expanded
    ones = torch.ones_like(out)
    for x, expected in zip(arrays, expected_gradients(ones, *WHOLE_TILES), strict=True):
        assert (x.grad.double() - expected).abs().max() < 4e-3 * max(expected.abs().max(), 1)


@pytest.mark.parametrize("of_tokens", [slice(None), slice(11, 60)])
def test_causal_attention_with_shared_heads(operator: Callable[..., Any], of_tokens: slice) -> None:
    del operator
    from flash_ladder.pytorch import attention

    q, k, v = WHOLE_TILES
    given = [q[:, of_tokens], k[:, of_tokens, :1], v[:, of_tokens, :1]]
    arrays = [x.clone().requires_grad_() for x in given]
    dout = normal(*given[0].shape, seed=6)
    attention(*arrays, causal=True).backward(dout)
    for x, expected in zip(arrays, expected_gradients(dout, *given, causal=True), strict=True):
        assert (x.grad.double() - expected).abs().max() < 4e-3 * expected.abs().max()


def assert_right(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert (got.double() - wanted).abs().max() < 4e-3 * wanted.abs().max()


@pytest.mark.parametrize("compiled", [False, True])
def test_sinks_alone_need_no_version_for_gradients(operator: Callable[..., Any], compiled: bool) -> None:
    """Nor do rows that see no key have any: the first queries of more queries than keys."""
    del operator
    from flash_ladder.pytorch import attention

    call = torch.compile(attention, fullgraph=True, backend="aot_eager") if compiled else attention
    q, k, v = Q, K[:, :30], V[:, :30]
    sinks, dout = SINKS.clone().requires_grad_(), normal(*q.shape, seed=6)
    call(q, k, v, causal=True, sinks=sinks, softcap=3.0).backward(dout)
    expected = expected_gradients(dout, q, k, v, causal=True, sinks=SINKS, softcap=3.0)
    assert_right([sinks.grad], expected[3:])
    sinks.grad = None
    of_all = {"cu_seqlens_q": [0, 40, 80], "cu_seqlens_k": torch.tensor([0, 30, 60])}
    packed = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v, dout)]
    call(*packed[:3], causal=True, sinks=sinks, softcap=3.0, **of_all).backward(packed[3])
    assert_right([sinks.grad], expected[3:])


TRAINED: dict[str, dict[str, Any]] = {
    "scores": {"softcap": 3.0, "alibi_slopes": SLOPES, "sinks": SINKS, "causal": True},
    "sinks": {"sinks": SINKS, "window": (20, 5)},
    "dropout": {"dropout_p": 0.5, "dropout_seed": 1 << 40, "dropout_offset": 3},
    "lengths": {"lengths": [30, 40], "lengths_kv": torch.tensor([20, 40])},
    "packed": {"cu_seqlens_q": CUMULATIVE, "max_seqlen_q": 64},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", TRAINED)
def test_attention_with_other_fields(fl: ModuleType, operator: Callable[..., Any], case: str, compiled: bool) -> None:
    """Its gradients are those of backward(), or by formulas; or no version solves the fields, and the error says so."""
    del operator
    from flash_ladder.pytorch import attention

    call = torch.compile(attention, fullgraph=True, backend="aot_eager") if compiled else attention
    fields = TRAINED[case]
    arrays = [x.clone().requires_grad_() for x in arrays_for(fields)]
    trained = [*arrays]
    if "sinks" in fields:
        trained.append(SINKS.clone().requires_grad_())
        fields = fields | {"sinks": trained[-1]}
    out, lse = call(*arrays, **fields, return_lse=True)
    dout = normal(*out.shape, seed=6)
    of_numbers = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in fields.items()}
    given = [dout, *(x.detach() for x in arrays), out.detach(), lse]
    try:
        expected = list(fl.backward(*given, **of_numbers))
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            out.backward(dout)
        pytest.skip(f"{error}")
    out.backward(dout)
    if case in ("scores", "sinks"):
        expected = expected_gradients(dout, *given[1:4], **of_numbers)
    assert_right([x.grad for x in trained], expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_in_a_window(operator: Callable[..., Any], compiled: bool) -> None:
    del operator
    from flash_ladder.pytorch import attention

    call = torch.compile(attention, fullgraph=True, backend="aot_eager") if compiled else attention
    q, k, v = WHOLE_TILES
    dout = normal(*q.shape, seed=6)
    for fields in ({"window": (20, 5)}, {"window": (20, -1), "causal": True}):
        arrays = [x.clone().requires_grad_() for x in (q, k, v)]
        call(*arrays, **fields).backward(dout)
        for x, expected in zip(arrays, expected_gradients(dout, q, k, v, **fields), strict=True):
            assert (x.grad.double() - expected).abs().max() < 4e-3 * expected.abs().max()


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(64, 64), (192, 128)])
def test_attention_with_other_head_dims(operator: Callable[..., Any], head_dim: int, head_dim_v: int) -> None:
    del operator
    from flash_ladder.pytorch import attention

    k, v = normal(1, 70, 1, head_dim, seed=4), normal(1, 70, 1, head_dim_v, seed=5)
    given = [normal(1, 40, 2, head_dim, seed=3), k, v]
    arrays = [x.clone().requires_grad_() for x in given]
    out = attention(*arrays, causal=True)
    dout = normal(*out.shape, seed=6)
    out.backward(dout)
    expected = expected_gradients(dout, *given, scale=head_dim**-0.5, causal=True)
    assert_right([x.grad for x in arrays], expected)


def test_a_window_that_is_none_is_refused(operator: Callable[..., Any]) -> None:
    del operator
    from flash_ladder.pytorch import attention

    with pytest.raises(TypeError, match=r"window is .*; allowed: None, or \(left, right\), each -1"):
        attention(*WHOLE_TILES, window=(9,))


def test_opcheck_of_attention(operator: Callable[..., Any]) -> None:
    del operator
    arrays = [x.clone().requires_grad_() for x in WHOLE_TILES]
    fields = [None] * 6, [0.1, True, [30, -1], None, 0.0, 0, 0, None, None, False]
    torch.library.opcheck(torch.ops.flash_ladder.attention.default, (*arrays, *fields[0], *fields[1]))


def test_deterministic_gradients_of_other_sizes_are_refused(operator: Callable[..., Any]) -> None:
    del operator
    from flash_ladder.pytorch import attention

    out = attention(*(x.clone().requires_grad_() for x in (Q, Q, Q)), deterministic=True)
    with pytest.raises(ValueError, match=r"seq_len\) 40 is not a multiple of 64"):
        out.sum().backward()


# ---- transformers ----


@pytest.fixture(scope="module")
def transformers(fl: ModuleType) -> ModuleType:
    found = pytest.importorskip("transformers", reason="transformers is not installed")
    del fl
    from flash_ladder import huggingface

    huggingface.register()
    return found


SIZES = {"vocab_size": 61, "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 128}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.1, "pad_token_id": 0}
TOKENS = torch.arange(1, 81).reshape(2, 40).remainder(61).to(DEVICE)
RIGHT = torch.ones(2, 40, dtype=torch.int64, device=DEVICE)
RIGHT[1, 25:] = 0


def model(transformers: ModuleType, name: str, **sizes: Any) -> torch.nn.Module:  # noqa: ANN401
    torch.manual_seed(0)
    if name == "Gemma2":
        sizes = {"sliding_window": 9, "query_pre_attn_scalar": 128, "attn_logit_softcapping": 3.0, **sizes}
    config = getattr(transformers, f"{name}Config")(**(SIZES | sizes))
    made = getattr(transformers, f"{name}ForCausalLM")(config).half().eval().to(DEVICE)
    made.set_attn_implementation("ladder")
    return made


def eager(of: torch.nn.Module, *arguments: Any, **more: Any) -> torch.Tensor:  # noqa: ANN401
    of.set_attn_implementation("eager")
    try:
        return of(*arguments, **more).logits
    finally:
        of.set_attn_implementation("ladder")


def assert_close(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """Rounding in both models: scripts/model_example.py derives a bound from float64, and this one is rough."""
    assert (logits - expected).abs().max() <= 8 * torch.finfo(torch.float16).eps * expected.abs().max()


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
@torch.no_grad()
def test_a_model(transformers: ModuleType, name: str) -> None:
    of = model(transformers, name)
    whole = eager(of, TOKENS)
    assert_close(of(TOKENS).logits, whole)
    assert_close(torch.compile(of, fullgraph=True, backend="aot_eager")(TOKENS).logits, whole)
    padded, rows = of(TOKENS, attention_mask=RIGHT).logits, RIGHT.bool()
    assert_close(padded[rows], whole[rows])
    assert not torch.equal(padded[~rows], whole[~rows])
    # Some tokens first, then the others with their keys in the cache.
    begun = of(TOKENS[:, :30])
    assert_close(of(TOKENS[:, 30:], past_key_values=begun.past_key_values).logits, whole[:, 30:])


@torch.no_grad()
def test_tokens_with_a_cache(transformers: ModuleType) -> None:
    of = model(transformers, "Llama")
    generated = of.generate(TOKENS[:1, :20], max_new_tokens=4, do_sample=False)
    assert generated.shape == (1, 24)
    logits = eager(of, generated[:, :-1])[0, 19:]
    chosen = logits.gather(1, generated[0, 20:, None])[:, 0]
    assert (logits.max(1).values - chosen).max() <= 8 * torch.finfo(torch.float16).eps * logits.abs().max()


def layer(**more: object) -> torch.nn.Module:
    found = torch.nn.Module()
    for name, value in ({"num_key_value_groups": 2, "is_causal": True} | more).items():
        setattr(found, name, value)
    return found


def heads_first(*arrays: torch.Tensor) -> list[torch.Tensor]:
    return [x.transpose(1, 2) for x in arrays]


@torch.no_grad()
def test_what_a_layer_passes(fl: ModuleType, transformers: ModuleType) -> None:
    del transformers
    from flash_ladder.huggingface import attention

    arrays = heads_first(Q, K, V)
    lengths, most = torch.tensor([40, 25]), {"window": (8, -1), "softcap": 3.0, "softmax_scale": 0.1, "sinks": SINKS}
    found, weights = attention(
        layer(), *arrays, lengths, scaling=0.1, sliding_window=9, softcap=3.0, s_aux=SINKS.half()
    )
    assert weights is None
    assert torch.equal(found, fl.forward(Q, K, V, causal=True, lengths=[40, 25], **most))
    # The last ten queries, of which the second sequence has none.
    found, _ = attention(layer(), arrays[0][:, :, -10:], *arrays[1:], lengths)
    assert torch.equal(found, fl.forward(Q[:, -10:], K, V, causal=True, lengths=[10, 0], lengths_kv=[40, 25]))
    # Keys of other tokens than those of the queries.
    found, _ = attention(layer(is_causal=False), arrays[0][:, :, :7], *arrays[1:], lengths)
    assert torch.equal(found, fl.forward(Q[:, :7], K, V, lengths=[7, 7], lengths_kv=[40, 25]))
    found, _ = attention(layer(), *arrays, None, is_causal=False, sliding_window=9)
    assert torch.equal(found, fl.forward(Q, K, V, window=(8, 8)))
    found, _ = attention(layer(), *arrays, None, sliding_window=40)
    assert torch.equal(found, fl.forward(Q, K, V, causal=True)), "a window that hides nothing is left out"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "left padding": ({"attention_mask": RIGHT.flip(1)}, "supports padding on the right only"),
    "two dimensions": ({"attention_mask": RIGHT[:, None, None].bool()}, "does not support a mask of shape (2, 1, 1, 4"),
    "packed": ({"position_ids": torch.arange(40, device=DEVICE)[None] % 20, "use_cache": False}, "supports causal"),
    "weights": ({"output_attentions": True}, "does not support output_attentions"),
    "sums": ({"cu_seq_lens_q": torch.tensor(CUMULATIVE)}, "does not support cu_seq_lens_q"),
}


@pytest.mark.parametrize("case", REFUSED)
@torch.no_grad()
def test_refused(transformers: ModuleType, case: str) -> None:
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(f'attn_implementation="ladder" {message}')):
        model(transformers, "Llama")(TOKENS, **given)


@torch.no_grad()
def test_models_that_are_refused(transformers: ModuleType) -> None:
    with pytest.raises(ValueError, match=r'="ladder" has no kernel for head_dim 40; supported: .*128'):
        model(transformers, "Llama", head_dim=40)(TOKENS)
    with pytest.raises(ValueError, match="does not support dropout"):
        model(transformers, "Llama", attention_dropout=0.1).train()(TOKENS)
    with pytest.raises(ValueError, match="needs the last query to be at the last key"):
        model(transformers, "Llama").generate(TOKENS, max_new_tokens=2, cache_implementation="static")


def test_an_older_version_of_transformers(transformers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    del transformers  # which replaces its own module at some imports
    from flash_ladder import huggingface

    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    with pytest.raises(ImportError, match=r"needs transformers 5, and this is 4\.57\.1"):
        huggingface.register()


def test_chunks(transformers: ModuleType) -> None:
    del transformers
    from flash_ladder.huggingface import lengths_of_mask

    config = type("Config", (), {"attention_chunk_size": 16})
    assert lengths_of_mask(1, 16, 16, local_size=16, config=config) is None
    with pytest.raises(ValueError, match=r"does not support chunked attention.* 16 tokens"):
        lengths_of_mask(1, 17, 17, local_size=16, config=config)
