"""One optimizer step, top to bottom: the file to read first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megatron_longstraw.config.schema import ObjectiveConfig
from megatron_longstraw.engine.base import Engine, StepResult
from megatron_longstraw.grpo.advantage import advantages
from megatron_longstraw.grpo.metrics import MetricSums, add_sums, policy_metrics
from megatron_longstraw.grpo.objective import ObjectiveInputs, TokenWeights, token_weights
from megatron_longstraw.replay.branch import replay_branches, score
from megatron_longstraw.replay.capture import PromptState, ReplaySettings, capture
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.prompt import prompt_backward
from megatron_longstraw.rollout.source import RolloutSource, Work
from megatron_longstraw.state.runs import StateSettings
from megatron_longstraw.tracking.clock import PhaseClock
from megatron_longstraw.types import Group


@dataclass(frozen=True)
class Machine:
    """What an update runs on; built once.

    Args:
        executor: runs segments.
        engine: holds gradients and optimizer.
        source: gives groups their responses.
        state: how state is kept.
        replay: how tokens are cut.
        objective: the objective's section.
        max_response_tokens: what the aggregation `constant` divides by, per response.
        clock: times the phases.
    """

    executor: Executor
    engine: Engine
    source: RolloutSource
    state: StateSettings
    replay: ReplaySettings
    objective: ObjectiveConfig
    max_response_tokens: int
    clock: PhaseClock


@dataclass(frozen=True)
class UpdateResult:
    """What one optimizer step did.

    Args:
        works: the update's groups, with responses and old log-probs filled in.
        loss: over all of the update's groups.
        policy: figures of the policy as sums and counts.
        step: what the optimizer did.
        state_bytes: the largest prompt's state.
        cotangent_bytes: the largest prompt's cotangents.
    """

    works: list[Work]
    loss: float
    policy: MetricSums
    step: StepResult
    state_bytes: int
    cotangent_bytes: int


def update(machine: Machine, works: Sequence[Work], lr: float) -> UpdateResult:
    """Run one optimizer step on some groups, one group at a time.

    Args:
        machine: what to run on.
        works: the update's groups, with or without responses.
        lr: the learning rate.
    """
    clock, engine = machine.clock, machine.engine
    engine.zero_grad()
    done: list[Work] = []
    figures: list[MetricSums] = []
    loss_sum = denominator = 0.0
    state_bytes = cotangent_bytes = 0
    for work in works:
        state, group, logprobs, entropies = _score(machine, work)
        inputs = _objective_inputs(machine.objective, group, logprobs)
        objective = _objective(machine, inputs)
        if bool(objective.weights.any()):
            with clock("replay") as on_segment:
                weights = objective.weights.split(inputs.lengths)
                replay_branches(machine.executor, state, _ids(group), weights, machine.replay, on_segment)
            with clock("prompt_backward") as on_segment:
                prompt_backward(machine.executor, state, on_segment)
        loss_sum += float(objective.loss_sum)
        denominator += objective.denominator
        figures.append(_policy_figures(machine.objective, inputs, entropies, group))
        state_bytes = max(state_bytes, state.run.state_bytes)
        cotangent_bytes = max(cotangent_bytes, state.run.cotangent_bytes)
        done.append(replace(work, group=group))
        del state
    with clock("finalize"):
        engine.finalize(denominator)
        step = engine.step(lr)
    loss = loss_sum / denominator if denominator else 0.0
    return UpdateResult(done, loss, add_sums(figures), step, state_bytes, cotangent_bytes)


def prepare(machine: Machine, work: Work) -> Work:
    """Give a group its responses and old log-probs under the present weights, for a later update of the same step."""
    if work.group is not None and all(response.old_logprobs is not None for response in work.group.responses):
        return work
    # Nothing is differentiated here, so no graph is kept.
    graphless = replace(machine, replay=replace(machine.replay, keep_graph_segments=0))
    _, group, _, _ = _score(graphless, work)
    return replace(work, group=group)


def _score(machine: Machine, work: Work) -> tuple[PromptState, Group, list[Tensor], list[Tensor]]:
    """Capture the prompt, complete the group, and score it under the present weights."""
    clock = machine.clock
    with clock("capture") as on_segment:
        state = capture(machine.executor, work.prompt, machine.state, machine.replay, on_segment)
    group = work.group
    if group is None:
        with clock("rollout") as on_token:
            group = machine.source.complete(machine.executor, state, work, on_token)
    with clock("score") as on_segment:
        logprobs, entropies = score(machine.executor, state, _ids(group), machine.replay, on_segment)
    responses = (
        response if response.old_logprobs is not None else replace(response, old_logprobs=scored)
        for response, scored in zip(group.responses, logprobs, strict=True)
    )
    return state, replace(group, responses=tuple(responses)), logprobs, entropies


def rewards(group: Group) -> Tensor:
    """Rewards `[responses]` float64, NaN where unscored."""
    values = (response.reward for response in group.responses)
    return torch.tensor([float("nan") if value is None else value for value in values], dtype=torch.float64)


def group_advantages(settings: ObjectiveConfig, group: Group) -> Tensor:
    """Advantages `[responses]` float64."""
    return advantages(rewards(group), scale=settings.advantage.scale, epsilon=settings.advantage.epsilon)


def _objective_inputs(settings: ObjectiveConfig, group: Group, logprobs: Sequence[Tensor]) -> ObjectiveInputs:
    old = [response.old_logprobs for response in group.responses]
    masks = [
        torch.ones(len(response.ids), dtype=torch.bool) if response.loss_mask is None else response.loss_mask
        for response in group.responses
    ]
    return ObjectiveInputs(
        logprobs=torch.cat(list(logprobs)),
        old_logprobs=torch.cat([values for values in old if values is not None]),
        advantages=group_advantages(settings, group),
        loss_mask=torch.cat(masks),
        lengths=tuple(len(response.ids) for response in group.responses),
    )


def _objective(machine: Machine, inputs: ObjectiveInputs) -> TokenWeights:
    settings = machine.objective
    return token_weights(
        inputs,
        name=settings.name,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        aggregation=settings.aggregation,
        max_response_tokens=machine.max_response_tokens,
    )


def _policy_figures(
    settings: ObjectiveConfig, inputs: ObjectiveInputs, entropies: Sequence[Tensor], group: Group
) -> MetricSums:
    sampled = [response.rollout_logprobs for response in group.responses if response.rollout_logprobs is not None]
    return policy_metrics(
        inputs,
        torch.cat(list(entropies)),
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        rollout_logprobs=torch.cat(sampled) if len(sampled) == len(group.responses) else None,
    )


def _ids(group: Group) -> list[Tensor]:
    return [response.ids for response in group.responses]
