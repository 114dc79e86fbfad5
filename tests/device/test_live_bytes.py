"""Live bytes are exact, forward and backward; the process's peak follows what it holds."""

import gc

import pytest
import torch
from torch import Tensor

from megatron_longstraw.device.memory import LiveBytes, peak_bytes, peak_rss_bytes, reset_peak_bytes, reset_peak_rss

FLOATS = 256
BYTES = 4 * FLOATS


class Doubled(torch.autograd.Function):
    """Saves its input, as an own kernel would."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        """Doubles the input."""
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        """Doubles the gradient."""
        return grad * 2


def test_a_tensor_counts_from_its_making_to_its_last_reference() -> None:
    with LiveBytes() as live:
        x = torch.zeros(FLOATS)
        assert (live.current, live.peak) == (BYTES, BYTES)
        y = x
        del x
        assert live.current == BYTES
        del y
        assert (live.current, live.peak) == (0, BYTES)


def test_views_and_in_place_results_are_counted_once_and_keep_their_storage_alive() -> None:
    with LiveBytes() as live:
        x = torch.zeros(FLOATS)
        view = x.view(2, -1)[1].t().detach()
        x += 1
        x.mul_(2)
        assert live.current == BYTES
        del x
        assert live.current == BYTES
        del view
        assert live.current == 0


def test_a_storage_held_only_outside_python_stays_counted() -> None:
    with LiveBytes() as live:
        scale = torch.ones((), requires_grad=True)
        scale_bytes = live.current
        # exp saves its result, which nothing in Python refers to once the sum is taken.
        loss = (torch.zeros(FLOATS) * scale).exp().sum()
        gc.collect()
        saved_by_mul_and_exp = 2 * BYTES
        assert live.current == scale_bytes + saved_by_mul_and_exp + 4
        del loss
        assert live.current == scale_bytes


def test_older_tensors_and_their_views_count_only_when_registered() -> None:
    old, other = torch.zeros(FLOATS), torch.zeros(FLOATS)
    with LiveBytes() as live:
        old.add_(1)
        view = old[:3]
        assert live.current == 0
        live.register(other, other[1:])
        assert live.current == BYTES
    del other
    assert live.current == 0
    assert view.numel() == 3


def test_factories_and_conversions_count_what_they_allocate() -> None:
    with LiveBytes() as live:
        from_list = torch.tensor([1.0, 2.0, 3.0])
        assert live.current == 12
        half = from_list.to(torch.bfloat16)
        assert live.current == 12 + 6
        same = from_list.to(torch.float32).contiguous()
        assert live.current == 12 + 6
        empty = torch.empty_like(half)
        on_meta = torch.empty(1000, device="meta")
        assert live.current == 12 + 6 + 6
    assert len({same.data_ptr(), empty.data_ptr(), on_meta.numel()}) == 3


def test_a_resized_storage_counts_at_its_present_size() -> None:
    with LiveBytes() as live:
        x = torch.empty(FLOATS)
        x.resize_(3 * FLOATS)
        assert live.current == 3 * BYTES


def test_the_peak_is_what_was_alive_together_and_restarts_from_what_is_alive() -> None:
    with LiveBytes() as live:
        kept = torch.zeros(FLOATS)
        for _ in range(3):
            kept + kept
        assert (live.current, live.peak) == (BYTES, 2 * BYTES)
        live.reset_peak()
        assert live.peak == BYTES
        del kept
        assert live.peak == BYTES


def test_forward_and_backward_count_saved_tensors_gradients_and_their_release() -> None:
    weight = torch.ones(FLOATS, requires_grad=True)
    with LiveBytes() as live:
        hidden = weight * 3
        assert live.current == BYTES
        loss = Doubled.apply(hidden).sum()
        del hidden
        # The function saved its input; its own output has been freed, and the loss is one float.
        assert live.current == BYTES + 4
        live.reset_peak()
        loss.backward()
        del loss
        assert live.current == BYTES
    assert weight.grad is not None
    weight.grad = None
    assert live.current == 0


def test_backward_peak_of_a_linear_chain_is_known_to_the_byte() -> None:
    x = torch.ones(FLOATS, requires_grad=True)
    with LiveBytes() as live:
        # Each exp saves its output; all three are alive when the backward starts.
        loss = x.exp().exp().exp().sum()
        assert live.current == 3 * BYTES + 4
        live.reset_peak()
        loss.backward()
        seed = 4
        # Entering the first exp's backward: three saved outputs, the sum's gradient (an expanded view of the seed), and
        # the product. At every later step one more saved output has been freed for each product made.
        assert live.peak == 3 * BYTES + 4 + seed + BYTES
    assert live.current == 4 + BYTES


def test_nested_counters_both_see_what_happens_inside() -> None:
    with LiveBytes() as outer:
        first = torch.zeros(FLOATS)
        with LiveBytes() as inner:
            second = torch.zeros(FLOATS)
        assert (outer.current, inner.current) == (2 * BYTES, BYTES)
        del first, second
        assert (outer.current, inner.current) == (0, 0)


def test_the_process_peak_follows_a_large_allocation_and_can_be_reset() -> None:
    size = 64 * 2**20
    if not reset_peak_rss():
        pytest.skip("this system cannot reset a process's peak")
    before = peak_rss_bytes()
    block = torch.ones(size // 4)
    assert peak_rss_bytes() - before > 0.9 * size
    del block
    assert peak_rss_bytes() - before > 0.9 * size
    reset_peak_bytes()
    assert peak_bytes() - before < 0.5 * size
