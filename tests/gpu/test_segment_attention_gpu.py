"""The accelerator's flash path equals the plain implementation there; prints what it measured."""

import pytest
import torch

from megatron_longstraw.kernels.segment_attention import choose, segment_attention
from megatron_longstraw.kernels.segment_attention.contract import PastPage
from megatron_longstraw.kernels.segment_attention.decode import decode_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: flash attention's accelerator ops"),
]


def draw(*shape, dtype):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def run(implementation, inputs, pages, d_out, dtype):
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    past = [
        PastPage(key.to(dtype), value.to(dtype), torch.zeros_like(key).float(), torch.zeros_like(value).float())
        for key, value in pages
    ]
    out = segment_attention(*leaves, past, scale=0.125, implementation=implementation)
    out.backward(d_out.to(dtype))
    return [
        out.detach(),
        *(leaf.grad for leaf in leaves),
        *(grad for page in past for grad in (page.d_key, page.d_value)),
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3])
def test_flash_error_is_that_of_the_plain_implementation(dtype, rows):
    inputs = [draw(257, rows, heads, 64, dtype=dtype) for heads in (8, 2, 2)]
    pages = [(draw(2, length, 64, dtype=dtype), draw(2, length, 64, dtype=dtype)) for length in (512, 100)]
    d_out = draw(257, rows, 8, 64, dtype=dtype)
    exact = run("reference", inputs, pages, d_out, torch.float64)
    plain = run("reference", inputs, pages, d_out, dtype)
    fast = run("flash", inputs, pages, d_out, dtype)
    for f, p, e in zip(fast, plain, exact, strict=True):
        error, allowed = (float((x.double() - e).norm() / e.norm()) for x in (f, p))
        print(f"{dtype} rows {rows}: flash {error:.2e}, plain {allowed:.2e}")
        assert error <= 2 * allowed + 1e-6


def test_decode_equals_the_last_token_of_a_segment():
    query, key, value = (draw(9, 4, heads, 64, dtype=torch.bfloat16) for heads in (8, 2, 2))
    past = (PastPage(draw(2, 300, 64, dtype=torch.bfloat16), draw(2, 300, 64, dtype=torch.bfloat16)),)
    whole = segment_attention(query, key, value, past, scale=0.125, implementation="flash")
    own_key, own_value = key.permute(1, 2, 0, 3), value.permute(1, 2, 0, 3)
    last = decode_attention(query[-1:], own_key, own_value, past, scale=0.125)
    torch.testing.assert_close(last, whole[-1:], rtol=3e-2, atol=3e-2)


def test_the_choice_follows_the_dtype():
    assert choose(torch.empty(0, dtype=torch.bfloat16, device="cuda"))[0] == "flash"
    assert choose(torch.empty(0, dtype=torch.float32, device="cuda"))[0] == "reference"
