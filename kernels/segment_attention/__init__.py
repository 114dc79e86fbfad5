"""Attention of one segment: unmasked over the pages of earlier tokens, causal over the segment itself.

The contract, for every implementation:

* `query [tokens, rows, query_heads, head_dim]`, `key` and `value [tokens, rows, kv_heads, head_dim]`; rows are branches
  that share all past pages; query head `h` reads key/value head `h // (query_heads // kv_heads)`.
* `past` holds the pages of all earlier tokens. They are constants of the autograd graph. Backward adds their gradient
  **in place** to their `d_key` and `d_value`, where a page has them.
* `own_cotangent`, where given, is called once in backward. It returns what later segments left as the cotangent of this
  segment's own `key` and `value`, which is added to their gradients.

Returns the attention output `[tokens, rows, query_heads, head_dim]` in the dtype of `query`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatron_longstraw.kernels.segment_attention import flash, reference
from megatron_longstraw.kernels.segment_attention.contract import OwnCotangent, PastPage


def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Sequence[PastPage],
    *,
    scale: float,
    own_cotangent: OwnCotangent | None = None,
    implementation: str | None = None,
) -> Tensor:
    """Attend a segment to its past pages and, causally, to itself; see the module's docstring for the contract."""
    name = implementation or choose(query)[0]
    if name == "reference":
        return reference.ReferenceSegmentAttention.apply(query, key, value, tuple(past), scale, own_cotangent)
    return flash.FlashSegmentAttention.apply(query, key, value, tuple(past), scale, own_cotangent)


def choose(query: Tensor) -> tuple[str, str]:
    """Name the implementation for tensors like `query`, and the reason."""
    if query.device.type == "cpu":
        return "flash", "aten's flash attention for the CPU takes every dtype"
    if query.dtype in (torch.float16, torch.bfloat16):
        return "flash", "aten's flash attention for the accelerator takes float16 and bfloat16"
    return "reference", f"aten's flash attention for the accelerator does not take {query.dtype}"
