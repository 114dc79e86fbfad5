"""The GRPO loop: build the parts from a config, resume, step, save, log."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megatron_longstraw.checkpoint.folder import write_durably
from megatron_longstraw.checkpoint.hf_read import load_hf_weights
from megatron_longstraw.checkpoint.resume import (
    check_same_run,
    hf_folder_of,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
)
from megatron_longstraw.checkpoint.save import save_checkpoint
from megatron_longstraw.config.load import dump_config, flatten
from megatron_longstraw.config.schema import Config
from megatron_longstraw.data.documents import Documents
from megatron_longstraw.data.order import RowOrder
from megatron_longstraw.data.prompts import PromptFile
from megatron_longstraw.data.recorded import RecordedFile, write_rollouts
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.data.token_cache import TokenCache
from megatron_longstraw.device import cpu
from megatron_longstraw.device.memory import peak_bytes, reset_peak_bytes
from megatron_longstraw.engine.megatron import MegatronEngine
from megatron_longstraw.engine.schedule import learning_rate
from megatron_longstraw.errors import Diverged, InputError, Interrupted
from megatron_longstraw.grpo.metrics import add_sums, group_metrics, means, reward_part_metrics
from megatron_longstraw.interrupt import Interrupts
from megatron_longstraw.model.build import build_model, read_hf_config, state_specs
from megatron_longstraw.model.flops import forward_flops
from megatron_longstraw.model.gpt import SegmentModel
from megatron_longstraw.model.tokenizer import end_ids, read_tokenizer
from megatron_longstraw.parallel.layout import ParallelLayout, process_groups
from megatron_longstraw.replay.capture import ReplaySettings
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.plan import gradient_start
from megatron_longstraw.rewards.call import Reward
from megatron_longstraw.rollout.decode import StopRules
from megatron_longstraw.rollout.source import RecordedRollouts, RolloutSource, SampledRollouts
from megatron_longstraw.state.runs import StateSettings
from megatron_longstraw.tracking.clock import PhaseClock
from megatron_longstraw.tracking.metrics import PHASES, MetricsLog, StepMetrics
from megatron_longstraw.tracking.progress import Progress
from megatron_longstraw.tracking.wandb import WandbRun
from megatron_longstraw.transaction import Machine, UpdateResult, group_advantages, prepare, rewards, update
from megatron_longstraw.types import Group

# Updates in a row whose gradient is not finite, after which a run stops.
MAX_SKIPPED_UPDATES = 3


@dataclass(frozen=True)
class Position:
    """Where a run stands; with the weights and the optimizer all that a resumed run needs.

    Args:
        step: steps done.
        update: optimizer steps done.
        group: groups taken, which numbers their random streams.
        row: position in the order of the data.
        skipped: updates in a row, up to here, whose gradient was not finite, and which changed nothing.
    """

    step: int = 0
    update: int = 0
    group: int = 0
    row: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class Trainer:
    """A run's parts, put together.

    Args:
        config: the whole config.
        layout: sizes and groups.
        model: this rank's part of the model.
        machine: what updates run on.
        tokenizer: of the model's folder, or None.
        hf_folder: the Hugging Face folder that the model's config came from.
    """

    config: Config
    layout: ParallelLayout
    model: SegmentModel
    machine: Machine
    tokenizer: Any
    hf_folder: Path

    def step(self, position: Position) -> tuple[Position, dict[str, object], list[Group]]:
        """Run one step: one rollout of its groups, and every update on them.

        Args:
            position: where the run stands.

        Returns:
            Where it stands afterwards, the step's line of metrics, and its groups.
        """
        train = self.config.train
        started = time.perf_counter()
        reset_peak_bytes()
        works, row = self.machine.source.take(position.row, position.group, train.groups_per_step)
        size = train.groups_per_update or train.groups_per_step
        batches = [works[start : start + size] for start in range(0, len(works), size)]
        # The first update samples its own groups from the state it trains on; the others' are sampled before it.
        batches[1:] = [[prepare(self.machine, work) for work in batch] for batch in batches[1:]]
        metrics = StepMetrics()
        results: list[UpdateResult] = []
        total = train.steps * train.updates_per_rollout * len(batches)
        for _ in range(train.updates_per_rollout):
            for index, batch in enumerate(batches):
                lr = learning_rate(position.update + len(results), total, self.config.optimizer)
                result = update(self.machine, batch, lr)
                batches[index] = result.works
                results.append(result)
                metrics.add(_update_figures(result, lr))
                if not result.step.applied:
                    warnings.warn(
                        f"step {position.step + 1}: the gradient is not finite, no weight moved", stacklevel=1
                    )
        groups = [work.group for batch in batches for work in batch if work.group is not None]
        _warn_of_unscored(groups)
        metrics.add(self._step_figures(groups, started))
        line = metrics.line(
            position.step + 1,
            gradient=self.config.replay.prompt_gradient,
            state_age=0,
            layout=self.layout.sizes,
        )
        after = Position(
            step=position.step + 1,
            update=position.update + len(results),
            group=position.group + len(works),
            row=row,
            skipped=_skipped_in_a_row(position.skipped, results),
        )
        return after, line, groups

    def _step_figures(self, groups: Sequence[Group], started: float) -> dict[str, float]:
        objective = self.config.objective
        figures = means(
            add_sums(
                group_metrics(
                    rewards(group),
                    group_advantages(objective, group),
                    lengths=[len(response.ids) for response in group.responses],
                    truncated=[response.truncated for response in group.responses],
                )
                for group in groups
            )
        )
        parts = reward_part_metrics(response.reward_parts for group in groups for response in group.responses)
        figures |= means({name: part for name, part in parts.items() if part[1]})
        seconds = self.machine.clock.take()
        step_s = time.perf_counter() - started
        figures |= {f"time/{phase}_s": seconds.get(phase, 0.0) for phase in PHASES} | {"time/step_s": step_s}
        prompt_tokens = sum(len(group.prompt.ids) for group in groups)
        response_tokens = sum(len(response.ids) for group in groups for response in group.responses)
        flops = sum(self._update_flops(group) for group in groups) * self.config.train.updates_per_rollout
        return figures | {
            "tokens/prompt": prompt_tokens,
            "tokens/response": response_tokens,
            "throughput/tokens_per_s": (prompt_tokens + response_tokens)
            * self.config.train.updates_per_rollout
            / step_s,
            "throughput/tflops": flops / step_s / 1e12,
            "memory/peak_bytes": peak_bytes(),
        }

    def _update_flops(self, group: Group) -> float:
        """Operations of one update on a group: capture and score, and where it teaches anything replay and backward."""
        model = self.model

        def forward(start: int, tokens: int, predictions: int) -> float:
            return forward_flops(
                model.config, model.real_vocabulary, start=start, tokens=tokens, predictions=predictions
            )

        prompt_tokens = len(group.prompt.ids)
        first = gradient_start(prompt_tokens, self.config.replay.prompt_gradient)
        branches = sum(forward(prompt_tokens, len(response.ids), len(response.ids)) for response in group.responses)
        capture = forward(0, prompt_tokens - 1, 0)
        if not bool(group_advantages(self.config.objective, group).any()):
            return capture + branches
        # A backward is twice its forward, which runs again beside it.
        return capture + 4 * branches + 3 * forward(first, prompt_tokens - 1 - first, 0)


def _skipped_in_a_row(before: int, results: Sequence[UpdateResult]) -> int:
    """Updates in a row that changed nothing, at the end of a step that began after `before` of them."""
    skipped = before
    for result in results:
        skipped = 0 if result.step.applied else skipped + 1
    return skipped


def _warn_of_unscored(groups: Sequence[Group]) -> None:
    """Warn of groups that cannot teach anything, since fewer than two of their responses have a reward."""
    sources = [g.prompt.source for g in groups if sum(r.reward is not None for r in g.responses) < 2]
    if sources:
        warnings.warn(f"{len(sources)} groups have fewer than two scored responses, first {sources[0]}", stacklevel=1)


def _update_figures(result: UpdateResult, lr: float) -> dict[str, float]:
    return means(result.policy) | {
        "loss": result.loss if result.step.applied else 0.0,
        "grad_norm": result.step.grad_norm,
        "lr": lr,
        "memory/state_bytes": result.state_bytes,
        "memory/cotangent_bytes": result.cotangent_bytes,
    }


@contextmanager
def build(config: Config, on_phase: Any = lambda name, done, total: None) -> Iterator[Trainer]:
    """Put a run's parts together, with freshly loaded weights, and take the process groups down at the end.

    Args:
        config: a checked config.
        on_phase: told of progress within a step: phase, done, total.
    """
    cpu.install()
    torch.manual_seed(config.train.seed)
    parallel = config.parallel
    with process_groups(
        tensor=parallel.tensor, pipeline=parallel.pipeline, context=parallel.context, expert=parallel.expert
    ) as layout:
        folder = Path(config.model.hf) if config.model.hf else hf_folder_of(config.model.checkpoint or "")
        hf_config = read_hf_config(folder)
        tokenizer = read_tokenizer(folder)
        # Before the weights: what is wrong with the data or the reward is said at once.
        source = _source(config, folder, hf_config, tokenizer, on_phase)
        dtype = _dtype(config.model.dtype)
        model = _load_model(config, hf_config, folder, layout)
        engine = MegatronEngine(model, layout, config.optimizer)
        replay = config.replay
        specs = state_specs(
            model,
            state_dtype=dtype if replay.state_dtype == "auto" else _dtype(replay.state_dtype),
            cotangent_dtype=_dtype(replay.cotangent_dtype),
        )
        machine = Machine(
            executor=Executor(engine.model, layout),
            engine=engine,
            source=source,
            state=StateSettings(specs, replay.page_tokens, cpu.default_device(), layout.groups.cp.rank()),
            replay=ReplaySettings(
                replay.segment_tokens, replay.prompt_gradient, replay.keep_graph_segments, config.rollout.temperature
            ),
            objective=config.objective,
            max_response_tokens=config.rollout.max_response_tokens,
            clock=PhaseClock(on_phase),
        )
        yield Trainer(config, layout, model, machine, tokenizer, folder)


def train(config: Config) -> None:
    """Run, or go on with, the run of `config.run_dir` until its last step.

    Args:
        config: a checked config.

    Raises:
        InputError: bad input, or a run directory that holds another run.
        Interrupted: SIGINT or SIGTERM came; the run's state is saved.
        Diverged: the policy's numbers are no longer finite.
    """
    run_dir = Path(config.run_dir)
    check_same_run(run_dir, config)
    run_dir.mkdir(parents=True, exist_ok=True)
    phases: dict[str, Any] = {}

    def on_phase(name: str, done: int, total: int) -> None:
        phases["progress"].phase(name, done, total)

    with build(config, on_phase) as trainer, Interrupts() as interrupts:
        position = _resume(trainer, run_dir)
        if position.step < config.train.steps:
            write_durably(run_dir / "config.yaml", dump_config(config))
        log = MetricsLog(run_dir, resume_step=position.step)
        wandb = config.tracking.wandb
        run = WandbRun(run_dir, mode=wandb.mode, project=wandb.project, name=wandb.name, config=flatten(config))
        progress = Progress(config.tracking.progress, total_steps=config.train.steps, done_steps=position.step)
        phases["progress"] = progress
        with progress:
            try:
                _loop(trainer, position, interrupts, (log.append, run.append, progress.step))
            except BaseException:
                run.close(failed=True)
                raise
        run.close()


def _loop(trainer: Trainer, position: Position, interrupts: Interrupts, sinks: Sequence[Any]) -> None:
    """Step until the end, or until asked to stop; save at the configured cadence and at the end."""
    config, run_dir = trainer.config, Path(trainer.config.run_dir)
    saved = position.step
    while position.step < config.train.steps:
        try:
            position_after, line, groups = trainer.step(position)
        except InputError:
            # Bad input met on the way, such as a reward function that raises, must not cost the steps before it.
            if saved < position.step:
                _save(trainer, position)
            raise
        position = position_after
        write_rollouts(run_dir / "rollouts" / f"step_{position.step:06d}.jsonl", groups, trainer.tokenizer)
        for sink in sinks:
            sink(line)
        at_end = position.step == config.train.steps
        due = config.checkpoint.every and position.step % config.checkpoint.every == 0
        if at_end or due or interrupts.requested:
            _save(trainer, position)
            saved = position.step
        if interrupts.requested and not at_end:
            raise Interrupted(f"stopped after step {position.step}, saved in {run_dir}; the same command goes on")
        if position.skipped >= MAX_SKIPPED_UPDATES:
            raise Diverged(f"the gradient was not finite in {position.skipped} updates in a row; a lower lr may help")


def _save(trainer: Trainer, position: Position) -> None:
    save_checkpoint(
        Path(trainer.config.run_dir),
        position.step,
        trainer.machine.engine,
        {"position": vars(position)},
        keep=trainer.config.checkpoint.keep,
        hf_folder=trainer.hf_folder,
    )


def _resume(trainer: Trainer, run_dir: Path) -> Position:
    found = latest_checkpoint(run_dir)
    if found is None:
        return Position()
    return Position(**load_checkpoint(found[1], trainer.machine.engine)["position"])


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def _load_model(config: Config, hf_config: Any, folder: Path, layout: ParallelLayout) -> SegmentModel:
    seed = config.model.init.seed
    torch.manual_seed(config.train.seed if seed is None else seed)
    model = build_model(hf_config, _dtype(config.model.dtype), layout)
    if config.model.checkpoint:
        load_weights(config.model.checkpoint, model)
    elif seed is None:
        load_hf_weights(model, hf_config, folder)
    return model


def _source(config: Config, folder: Path, hf_config: Any, tokenizer: Any, on_phase: Any) -> RolloutSource:
    data, rollout = config.data, config.rollout
    encoder = Encoder(tokenizer, hf_config.vocab_size, data.max_prompt_tokens, data.overlong)
    tokens = None if tokenizer is None else TokenCache(tokenizer, data.token_cache, partial(on_phase, "tokenize"))
    documents = Documents(tokens, key=data.documents_key, anywhere=data.documents_anywhere)
    if rollout.source == "recorded":
        groups = RecordedFile(rollout.path or "", encoder, documents)
        # Recorded groups are trained on in the order in which they were recorded.
        return RecordedRollouts(groups, RowOrder(len(groups), shuffle=False, seed=data.seed))
    if rollout.stop and tokenizer is None:
        raise InputError("needs a tokenizer, and the model's folder has none", key="rollout.stop")
    eos_ids = end_ids(folder, hf_config, tokenizer)
    if not eos_ids and not rollout.stop:
        warnings.warn("the model has no end-of-sequence token: every response will be truncated", stacklevel=2)
    reward = Reward(config.reward)
    prompts = PromptFile(data.prompts or "", encoder, data.prompt_key, documents)
    return SampledRollouts(
        prompts=prompts,
        order=RowOrder(len(prompts), shuffle=data.shuffle, seed=data.seed),
        settings=rollout,
        stop=StopRules(rollout.max_response_tokens, eos_ids, rollout.stop, tokenizer),
        reward=reward,
        tokenizer=tokenizer,
    )
