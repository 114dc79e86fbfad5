"""The router of a mixture of experts: which experts run for a token, and how their outputs are weighed."""

import torch
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor


def choose_experts(logits: Tensor, count: int, *, renormalise: bool) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, of which the largest are taken; ties go as `torch.topk` decides.

    Args:
        logits: `[tokens, experts]`; the computation stays in their dtype.
        count: experts of a token.
        renormalise: divide the weights of a token by their sum.

    Returns:
        Weights `[tokens, experts]`, 0 where an expert is not taken, and a mask of the same shape.
    """
    probabilities = torch.softmax(logits, dim=-1)
    weights, experts = probabilities.topk(count, dim=-1)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    taken = torch.zeros_like(logits, dtype=torch.bool).scatter(1, experts, True)
    return torch.zeros_like(logits).scatter(1, experts, weights), taken


class Router(TopKRouter):
    """Megatron's router whose softmax keeps float64, without auxiliary losses, capacity or bias.

    The choice is discrete: where two experts' logits are equal to rounding, the last bit decides. A segment that is
    recomputed with its own shapes repeats every bit on a CPU, so that capture and prompt backward choose the same
    experts, and so do the two forwards of a branch in replay; on a GPU Megatron adds a token's experts in no fixed
    order unless torch is told to be deterministic. A token that is scored or sampled among other rows may be rounded
    otherwise and take the other one of two nearly equal experts; its gradient is that of the forward replay runs.
    """

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Route `[tokens, rows, hidden]`.

        Args:
            hidden: what the experts read.
            padding_mask: unused; padding has no gradient, whichever experts it takes.

        Returns:
            Weights and mask as in `choose_experts`, `[tokens * rows, experts]`; the weights in the input's dtype.
        """
        logits = self.gating(hidden).flatten(0, 1)
        weights, taken = choose_experts(logits, self.topk, renormalise=not self.config.moe_router_pre_softmax)
        return weights.to(hidden.dtype), taken
