"""Which implementation each kernel takes here, and why; what `longstraw doctor` prints."""

import torch

from megatron_longstraw.kernels.segment_attention import choose


def choices() -> list[tuple[str, str, str]]:
    """List `(kernel, implementation, reason)` for the default device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        implementation, reason = choose(torch.empty(0, dtype=dtype, device=device))
        rows.append((f"segment_attention ({str(dtype).removeprefix('torch.')})", implementation, reason))
    rows.append(("token_logprob", "chunked", "plain PyTorch, any device and dtype"))
    return rows
