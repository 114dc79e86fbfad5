"""Records of the kernel's contract; what they mean in it is said in the package's docstring."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

OwnCotangent = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PastPage:
    """The filled part of one page of keys and values, shared by all rows; views, owned by the state.

    Args:
        key: `[kv_heads, tokens, head_dim]`, in the state's dtype.
        value: like `key`.
        d_key: like `key`, in the cotangent's dtype: where backward accumulates; None where the page is a constant.
        d_value: like `d_key`.
    """

    key: Tensor
    value: Tensor
    d_key: Tensor | None = None
    d_value: Tensor | None = None
