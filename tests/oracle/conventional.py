"""The conventional GRPO gradient, written with transformers and autograd: the truth that the package is compared with.

It imports nothing of the package. Groups have the form of a line of a recorded-rollouts file: `prompt_ids`, and
`responses` with `ids`, `reward` (or None) and, where there are any, `old_logprobs` and `loss_mask`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

Group = Mapping[str, Any]

LLAMA_SIZES = {"hidden_size": 32, "intermediate_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2}
QWEN2_SIZES = {"hidden_size": 48, "intermediate_size": 40, "num_attention_heads": 6, "num_key_value_heads": 2}
# The heads' total width, 64, is another than the hidden size.
QWEN3_SIZES = {"hidden_size": 40, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1}
QWEN3_MOE_SIZES = {**QWEN3_SIZES, "head_dim": 16, "num_experts": 8, "moe_intermediate_size": 24}
# Scaled from few original positions, so that prompts of some tens of tokens feel every part of the scaling.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "beta_fast": 8.0,
    "original_max_position_embeddings": 64,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, LLAMA_SIZES),
    "llama3_rope": (LlamaConfig, LlamaForCausalLM, {**LLAMA_SIZES, "rope_parameters": LLAMA3_ROPE}),
    "llama_linear_rope": (LlamaConfig, LlamaForCausalLM, {**LLAMA_SIZES, "rope_parameters": LINEAR_ROPE}),
    "llama_yarn": (
        LlamaConfig,
        LlamaForCausalLM,
        {**LLAMA_SIZES, "rope_parameters": YARN_ROPE, "max_position_embeddings": 256},
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, QWEN2_SIZES),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {**QWEN3_SIZES, "head_dim": 16, "tie_word_embeddings": False}),
    "qwen3_tied": (Qwen3Config, Qwen3ForCausalLM, {**QWEN3_SIZES, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {**QWEN3_MOE_SIZES, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
    # A dense layer, then one whose experts' weights do not add up to 1.
    "qwen3_moe_mixed": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            **QWEN3_MOE_SIZES,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "mlp_only_layers": [0],
            "tie_word_embeddings": True,
        },
    ),
    "mistral": (
        MistralConfig,
        MistralForCausalLM,
        {**LLAMA_SIZES, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": None},
    ),
}


@dataclass(frozen=True)
class OracleResult:
    """What one conventional update computes.

    Args:
        loss: the update's loss.
        gradients: by transformers' parameter name, at least float32; a tied weight appears once, under its first name.
        logprobs: `[response_tokens]` of each response, groups in order.
        entropies: `[response_tokens]` of each response, nats.
    """

    loss: float
    gradients: dict[str, Tensor]
    logprobs: list[Tensor]
    entropies: list[Tensor]


def tiny_model(
    kind: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, layers: int = 2, **overrides: Any
) -> PreTrainedModel:
    """Builds a small random transformers model in which every parameter matters.

    The weights are representable in bfloat16, so that the same seed gives the same weights in every dtype.

    Args:
        kind: one of `KINDS`.
        dtype: of the parameters.
        seed: of the weights.
        layers: decoder layers.
        overrides: further config fields, the last word on all of them.
    """
    config_class, model_class, fields = KINDS[kind]
    config = config_class(**{"vocab_size": 97, "num_hidden_layers": layers, **fields, **overrides})
    config._attn_implementation = "sdpa"
    # The plain loop over experts, as the model's own file has it.
    config._experts_implementation = "eager"
    model: PreTrainedModel = model_class(config)
    draw_weights(model, seed, tied=config.tie_word_embeddings)
    # Parameters only: rotary frequencies are float32 in any dtype, and model.to() would round them.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    config.dtype = dtype
    if dtype == torch.float64:
        keep_float64(model)
    nn.Module.train(model, False)
    return model


def draw_weights(model: nn.Module, seed: int, *, tied: bool) -> None:
    """Draws norm weights around 1, biases around 0, and matrices that keep the size of what goes through them.

    Args:
        model: whose parameters are drawn, in place, in float32.
        seed: of the draw.
        tied: the embedding is the output layer too, and so scaled like one.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            values = values * 0.3 + (0.0 if name.endswith("bias") else 1.0)
        elif tied or "embed_tokens" not in name:
            values = values * 1.5 / math.sqrt(parameter.shape[-1])
        parameter.data = values.to(torch.bfloat16).to(torch.float32)


def keep_float64(model: nn.Module) -> None:
    """Makes norms and routers compute in their input's dtype; transformers rounds to float32, which hides 1e-12."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm_forward(module)
        elif type(module).__name__.endswith("TopKRouter"):
            module.forward = _router_forward(module)


def _norm_forward(norm: nn.Module) -> Any:
    def forward(hidden: Tensor) -> Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        scaled = hidden * torch.rsqrt(variance + norm.variance_epsilon)  # type: ignore[operator]
        return norm.weight * scaled  # type: ignore[operator]

    return forward


def _router_forward(router: Any) -> Any:
    def forward(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = hidden.reshape(-1, router.hidden_dim) @ router.weight.t()
        weights, experts = logits.exp().topk(router.top_k, dim=-1)
        total = weights if router.norm_topk_prob else logits.exp()
        return logits, weights / total.sum(-1, keepdim=True), experts

    return forward


def save_folder(model: PreTrainedModel, folder: str | Path) -> Path:
    """Writes config and safetensors as transformers does; returns the folder."""
    model.save_pretrained(folder)
    return Path(folder)


def folder_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names parameters, or their gradients, as a saved folder does: there each expert's matrices are tensors."""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        prefix, experts, matrix = name.partition(".mlp.experts.")
        if not experts:
            named[name] = tensor
            continue
        for expert, weights in enumerate(tensor):
            # Rows of the gate come before those of the other half.
            halves = weights.chunk(2) if matrix == "gate_up_proj" else (weights,)
            kinds = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
            for kind, part in zip(kinds, halves, strict=True):
                named[f"{prefix}{experts}{expert}.{kind}.weight"] = part
    return named


def grpo_gradient(
    model: PreTrainedModel,
    groups: Sequence[Group],
    *,
    prompt_gradient: str | int = "full",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregation: str = "token",
    max_response_tokens: int = 0,
    advantage_scale: str = "group_std",
    advantage_epsilon: float = 1e-4,
    temperature: float = 1.0,
) -> OracleResult:
    """Computes the loss of one update and its gradient, one response at a time, each with its whole prompt.

    Gradients of the responses are added up in at least float32.

    Args:
        model: the policy; its parameters and their `.grad` stay as they are.
        groups: all groups of the update; responses without `old_logprobs` are on policy.
        prompt_gradient: `full`, `stop` (only the last prompt token, which the branch starts from, has a gradient), or
            the number of last prompt tokens with a gradient.
        clip_low: the ratio's lower bound is `1 - clip_low`.
        clip_high: the ratio's upper bound is `1 + clip_high`.
        aggregation: `token`, `sequence` or `constant`.
        max_response_tokens: what `constant` divides by, times the number of responses.
        advantage_scale: `group_std` or `none`.
        advantage_epsilon: added to the std.
        temperature: the logits are divided by it.
    """
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = [torch.zeros_like(parameter, dtype=_at_least_float32(parameter.dtype)) for parameter in parameters]
    total_loss, logprobs, entropies = 0.0, [], []
    for group in groups:
        advantages = group_advantages([r["reward"] for r in group["responses"]], advantage_scale, advantage_epsilon)
        for response, advantage in zip(group["responses"], advantages, strict=True):
            logprob, entropy = response_logprobs(
                model, group["prompt_ids"], response["ids"], prompt_gradient=prompt_gradient, temperature=temperature
            )
            weights = aggregation_weights(response, groups, aggregation, max_response_tokens).to(logprob.dtype)
            old = logprob.detach()
            if response.get("old_logprobs") is not None:
                old = torch.tensor(response["old_logprobs"], dtype=logprob.dtype)
            # Selection before the ratio, not a product after it: a masked token's old log-prob may be anything.
            kept = weights != 0
            loss = (clipped_losses(logprob[kept], old[kept], advantage, clip_low, clip_high) * weights[kept]).sum()
            total_loss += loss.item()
            for total, part in zip(gradients, torch.autograd.grad(loss, parameters), strict=True):
                total += part
            logprobs.append(logprob.detach())
            entropies.append(entropy.detach())
    return OracleResult(total_loss, dict(zip(names, gradients, strict=True)), logprobs, entropies)


def response_logprobs(
    model: PreTrainedModel,
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    *,
    prompt_gradient: str | int = "full",
    temperature: float = 1.0,
    detach_constant: bool = True,
) -> tuple[Tensor, Tensor]:
    """Computes the log-prob of each response token, and the entropy of the distribution it was drawn from.

    Args:
        model: the policy.
        prompt_ids: the prompt.
        response_ids: the response.
        prompt_gradient: as for `grpo_gradient`; below `full` the earlier tokens run first, into a cache.
        temperature: the logits are divided by it.
        detach_constant: False keeps the graph of the cached part, which gives `full` in two forwards.

    Returns:
        Both `[response_tokens]`, at least float32.
    """
    ids = torch.tensor([[*prompt_ids, *response_ids[:-1]]])
    window = {"full": len(prompt_ids), "stop": 1}.get(prompt_gradient, prompt_gradient)  # type: ignore[arg-type]
    constant_tokens = max(len(prompt_ids) - int(window), 0)
    if constant_tokens:
        # A cache of its own for each response: each appends to it.
        cache = DynamicCache(config=model.config)
        with torch.set_grad_enabled(not detach_constant):
            model.model(ids[:, :constant_tokens], cache=cache, use_cache=True)
        outputs = model(ids[:, constant_tokens:], cache=cache, use_cache=True)
    else:
        outputs = model(ids, use_cache=False)
    logits = outputs.logits[0, -len(response_ids) :]
    distribution = torch.log_softmax(logits.to(_at_least_float32(logits.dtype)) / temperature, dim=-1)
    targets = torch.tensor(response_ids)[:, None]
    return distribution.gather(-1, targets)[:, 0], -(distribution.exp() * distribution).sum(-1)


def group_advantages(rewards: Sequence[float | None], scale: str, epsilon: float) -> list[float]:
    """Computes `(r - mean) / (std + epsilon)` over the scored rewards; 0 where unscored, and without spread."""
    scored = [reward for reward in rewards if reward is not None and not math.isnan(reward)]
    if len(scored) < 2 or min(scored) == max(scored):
        return [0.0] * len(rewards)
    mean = sum(scored) / len(scored)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in scored) / (len(scored) - 1))
    divisor = std + epsilon if scale == "group_std" else 1.0
    return [0.0 if reward is None or math.isnan(reward) else (reward - mean) / divisor for reward in rewards]


def clipped_losses(logprob: Tensor, old: Tensor, advantage: float, clip_low: float, clip_high: float) -> Tensor:
    """Computes `-min(ratio * advantage, clip(ratio) * advantage)` of each token."""
    ratio = torch.exp(logprob - old)
    clipped = torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def aggregation_weights(
    response: Mapping[str, Any], groups: Sequence[Group], aggregation: str, max_response_tokens: int
) -> Tensor:
    """Computes what each token's loss is multiplied by, `[response_tokens]` float64, 0 where masked.

    The denominators count the tokens and responses of all groups of the update.
    """
    mask = _mask(response)
    all_masks = [_mask(other) for group in groups for other in group["responses"]]
    if aggregation == "token":
        return mask / max(sum(float(other.sum()) for other in all_masks), 1.0)
    if aggregation == "sequence":
        return mask / max(float(mask.sum()), 1.0) / len(all_masks)
    assert aggregation == "constant", aggregation
    assert max_response_tokens > 0
    return mask / (len(all_masks) * max_response_tokens)


def relative_difference(ours: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> float:
    """Computes the relative L2 difference of two whole gradients, in float64; their names must agree."""
    assert ours.keys() == truth.keys(), sorted(ours.keys() ^ truth.keys())
    difference = sum(float((ours[name].double() - truth[name].double()).square().sum()) for name in truth)
    norm = sum(float(truth[name].double().square().sum()) for name in truth)
    return math.sqrt(difference / norm) if norm else math.sqrt(difference)


def _mask(response: Mapping[str, Any]) -> Tensor:
    loss_mask = response.get("loss_mask")
    return torch.tensor([1] * len(response["ids"]) if loss_mask is None else list(loss_mask), dtype=torch.float64)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
