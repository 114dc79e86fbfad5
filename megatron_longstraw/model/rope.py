"""Rotary position embedding at absolute positions, with the scaling variants of Hugging Face configs."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megatron_longstraw.errors import InputError

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def rotary_frequencies(hf_config: Any) -> tuple[Tensor, float]:
    """Compute inverse frequencies and the factor of cosine and sine for a Hugging Face config.

    Args:
        hf_config: a config of `transformers`, with `rope_parameters`.

    Returns:
        Inverse frequencies `[rotary_dim / 2]` in float32, and the attention factor (1 except for YaRN).

    Raises:
        InputError: a scaling variant whose angles depend on the sequence's length.
    """
    parameters = hf_config.rope_parameters
    rope_type = parameters.get("rope_type", "default")
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise InputError(
            f"rope_type {rope_type!r} is not supported", key="config.json", allowed=", ".join(SUPPORTED_ROPE_TYPES)
        )
    if rope_type != "default":
        # Also where the model around it is built without memory.
        with torch.device("cpu"):
            return ROPE_INIT_FUNCTIONS[rope_type](hf_config, torch.device("cpu"))
    head_dim = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (parameters["rope_theta"] ** exponent), 1.0


class RotaryTable(nn.Module):
    """Cosine and sine of a segment's positions, in float32 angles as `transformers` has them.

    Args:
        inverse_frequencies: `[rotary_dim / 2]` float32.
        factor: multiplies cosine and sine.
    """

    inverse_frequencies: Tensor

    def __init__(self, inverse_frequencies: Tensor, factor: float) -> None:
        super().__init__()
        self.register_buffer("inverse_frequencies", inverse_frequencies, persistent=False)
        self.factor = factor

    def forward(self, start: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of positions `start..start+tokens`, each `[tokens, 1, 1, rotary_dim]` in `dtype`."""
        positions = torch.arange(start, start + tokens, device=self.inverse_frequencies.device)
        angles = torch.outer(positions.float(), self.inverse_frequencies.float())
        angles = torch.cat([angles, angles], dim=-1)[:, None, None, :]
        return (angles.cos() * self.factor).to(dtype), (angles.sin() * self.factor).to(dtype)


def _rotated(tensor: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = tensor.chunk(2, dim=-1)
    return tensor * cosine + torch.cat([-second, first], dim=-1) * sine


class _Rotate(torch.autograd.Function):
    """A rotation is linear and orthogonal up to a factor: backward rotates by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotate; keep only the angles."""
        ctx.save_for_backward(cosine, sine)
        return _rotated(tensor, cosine, sine)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Rotate back."""
        cosine, sine = ctx.saved_tensors
        return _rotated(d_out, cosine, -sine), None, None


def rotate(tensor: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate halves of `[tokens, rows, heads, rotary_dim]` by a segment's angles (`RotaryTable`)."""
    return _Rotate.apply(tensor, *rotary)
