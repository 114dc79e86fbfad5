"""The plain implementation, holding all logits. The truth for the chunked one."""

import torch
from torch import Tensor


def token_logprob(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """See the package's `token_logprob`."""
    logits = (hidden @ weight.t()).to(torch.promote_types(hidden.dtype, torch.float32)) / temperature
    logprobs = logits.log_softmax(dim=-1)
    entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropies.detach()
