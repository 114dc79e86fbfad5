"""The flash implementation equals the plain one, and the plain one equals a formula typed out here."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.kernels.segment_attention import segment_attention
from megatron_longstraw.kernels.segment_attention.contract import PastPage
from megatron_longstraw.kernels.segment_attention.decode import decode_attention


def relative(actual, expected):
    return ((actual - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def make(tokens, rows, kv_heads, group, page_lengths, dtype=torch.float64, head_dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    query = draw(tokens, rows, kv_heads * group, head_dim)
    key, value = draw(tokens, rows, kv_heads, head_dim), draw(tokens, rows, kv_heads, head_dim)
    pages = [(draw(kv_heads, length, head_dim), draw(kv_heads, length, head_dim)) for length in page_lengths]
    return query, key, value, pages, draw(*query.shape)


def run(implementation, query, key, value, pages, d_out, own=None, constant=()):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (query, key, value)]
    past = []
    for index, (past_key, past_value) in enumerate(pages):
        cotangents = (None, None) if index in constant else (torch.zeros_like(past_key), torch.zeros_like(past_value))
        past.append(PastPage(past_key, past_value, *cotangents))
    out = segment_attention(
        *inputs, past, scale=0.3, own_cotangent=(lambda: own) if own else None, implementation=implementation
    )
    out.backward(d_out)
    page_grads = [grad for page in past for grad in (page.d_key, page.d_value) if grad is not None]
    return [out.detach(), *(tensor.grad for tensor in inputs), *page_grads]


def by_loops(query, key, value, pages):
    """Attention of one query at a time, in Python."""
    tokens, rows, query_heads, _ = query.shape
    out = torch.empty_like(query)
    for row in range(rows):
        for head in range(query_heads):
            kv_head = head // (query_heads // key.shape[2])
            for token in range(tokens):
                keys = torch.cat([*(page[0][kv_head] for page in pages), key[: token + 1, row, kv_head]])
                values = torch.cat([*(page[1][kv_head] for page in pages), value[: token + 1, row, kv_head]])
                scores = [math.exp(0.3 * float(query[token, row, head] @ k)) for k in keys]
                out[token, row, head] = sum(s * v for s, v in zip(scores, values, strict=True)) / sum(scores)
    return out


@pytest.mark.parametrize("implementation", ["reference", "flash"])
@pytest.mark.parametrize("page_lengths", [(), (3,), (4, 1)])
def test_output_equals_the_formula(implementation, page_lengths):
    query, key, value, pages, _ = make(3, 2, 2, 2, page_lengths)
    past = [PastPage(*page) for page in pages]
    out = segment_attention(query, key, value, past, scale=0.3, implementation=implementation)
    assert relative(out, by_loops(query, key, value, pages)) < 1e-13


@given(
    tokens=st.integers(1, 40),
    rows=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    page_lengths=st.lists(st.integers(1, 50), max_size=3),
    own=st.booleans(),
)
def test_flash_equals_reference_with_all_gradients(tokens, rows, kv_heads, group, page_lengths, own):
    query, key, value, pages, d_out = make(tokens, rows, kv_heads, group, page_lengths)
    extra = (key * 0.7, value * -0.2) if own else None
    expected = run("reference", query, key, value, pages, d_out, extra)
    actual = run("flash", query, key, value, pages, d_out, extra)
    for a, e in zip(actual, expected, strict=True):
        assert relative(a, e) < 1e-12


def test_reference_gradient_equals_finite_differences():
    query, key, value, pages, d_out = make(3, 1, 1, 2, (2,), head_dim=2)
    _, d_query, d_key, d_value, d_past_key, d_past_value = run("reference", query, key, value, pages, d_out)
    for tensor, grad in [
        (query, d_query),
        (key, d_key),
        (value, d_value),
        (pages[0][0], d_past_key),
        (pages[0][1], d_past_value),
    ]:
        flat, step = tensor.view(-1), 1e-6
        for index in range(flat.numel()):
            sides = []
            for sign in (1, -1):
                flat[index] += sign * step
                sides.append(float((by_loops(query, key, value, pages) * d_out).sum()))
                flat[index] -= sign * step
            assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(float(grad.view(-1)[index]), abs=1e-8)


def test_backward_adds_to_what_the_pages_already_hold():
    query, key, value, pages, d_out = make(5, 1, 2, 2, (7,))
    page = PastPage(*pages[0], torch.ones_like(pages[0][0]), torch.ones_like(pages[0][1]))
    leaf = query.clone().requires_grad_()
    segment_attention(leaf, key, value, [page], scale=0.3).backward(d_out)
    fresh = run("reference", query, key, value, pages, d_out)
    assert relative(page.d_key - 1, fresh[4]) < 1e-12
    assert relative(page.d_value - 1, fresh[5]) < 1e-12


def test_a_constant_page_gets_no_cotangent_and_the_others_keep_theirs():
    query, key, value, pages, d_out = make(5, 1, 2, 2, (7, 4))
    every = run("reference", query, key, value, pages, d_out)
    some = run("flash", query, key, value, pages, d_out, constant=(0,))
    for a, e in zip(some, every[:4] + every[6:], strict=True):
        assert relative(a, e) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_error_is_that_of_the_plain_implementation(dtype):
    exact_inputs = make(48, 1, 2, 4, (64, 32), head_dim=32)
    rounded = make(48, 1, 2, 4, (64, 32), dtype=dtype, head_dim=32)
    exact = run("reference", *exact_inputs)
    plain = run("reference", *rounded)
    fast = run("flash", *rounded)
    for f, p, e in zip(fast, plain, exact, strict=True):
        assert relative(f.double(), e) <= 2 * relative(p.double(), e) + 1e-6


def test_strided_inputs_give_the_same_result():
    query, key, value, pages, d_out = make(6, 2, 2, 2, (5,))
    mixed = torch.cat([query, key, value], dim=2)
    views = mixed.split([4, 2, 2], dim=2)
    strided_pages = [(k.transpose(0, 1).contiguous().transpose(0, 1), v) for k, v in pages]
    expected = run("flash", query, key, value, pages, d_out)
    past = [PastPage(k, v, torch.zeros_like(k), torch.zeros_like(v)) for k, v in strided_pages]
    out = segment_attention(*views, past, scale=0.3)
    assert relative(out, expected[0]) < 1e-14


@given(rows=st.integers(1, 5), own_tokens=st.integers(1, 9), page_lengths=st.lists(st.integers(1, 20), max_size=2))
def test_decode_equals_the_last_token_of_a_segment(rows, own_tokens, page_lengths):
    query, key, value, pages, _ = make(own_tokens, rows, 2, 3, page_lengths)
    past = tuple(PastPage(*page) for page in pages)
    whole = segment_attention(query, key, value, past, scale=0.3, implementation="reference")
    own_key, own_value = key.permute(1, 2, 0, 3), value.permute(1, 2, 0, 3)
    last = decode_attention(query[-1:], own_key, own_value, past, scale=0.3)
    assert relative(last, whole[-1:]) < 1e-13
