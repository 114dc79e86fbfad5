"""Names, formats and meanings that stay as they are; a change here is a change for every user."""

from megatron_longstraw import cli
from megatron_longstraw.config.load import config_keys
from megatron_longstraw.config.schema import Config
from megatron_longstraw.tracking.metrics import CLAIM_NAMES, METRIC_NAMES

CONFIG_KEYS = """
run_dir
model.hf model.checkpoint model.init.seed model.dtype
parallel.tensor parallel.pipeline parallel.context parallel.expert parallel.sequence_parallel
engine.name engine.deepspeed_config
data.prompts data.shuffle data.seed data.max_prompt_tokens data.overlong data.prompt_key
data.documents_key data.documents_anywhere data.token_cache
rollout.source rollout.path rollout.group_size rollout.max_response_tokens rollout.temperature rollout.top_p
rollout.top_k rollout.stop rollout.seed
reward.function reward.kwargs reward.style reward.functions
objective.name objective.clip_low objective.clip_high objective.kl_coefficient objective.kl_estimator
objective.aggregation objective.advantage.scale objective.advantage.epsilon
replay.segment_tokens replay.prompt_gradient replay.state_dtype replay.cotangent_dtype replay.tier replay.page_tokens
replay.keep_graph_segments
optimizer.name optimizer.lr optimizer.weight_decay optimizer.betas optimizer.eps optimizer.clip_grad
optimizer.schedule optimizer.warmup_steps
train.steps train.groups_per_step train.groups_per_update train.updates_per_rollout train.seed
checkpoint.every checkpoint.keep
tracking.wandb.mode tracking.wandb.project tracking.wandb.name tracking.progress
"""

METRICS = """
loss reward/mean reward/std advantage/abs_mean group/zero_spread policy/ratio_mean policy/clip_fraction policy/kl
policy/entropy policy/logprob_drift grad_norm lr tokens/prompt tokens/response response/length_mean response/truncated
time/capture_s time/rollout_s time/score_s time/replay_s time/prompt_backward_s time/finalize_s time/step_s
throughput/tokens_per_s throughput/tflops memory/peak_bytes memory/state_bytes memory/cotangent_bytes
"""


def test_config_keys() -> None:
    assert list(config_keys()) == CONFIG_KEYS.split()


def test_defaults_that_figures_depend_on() -> None:
    config = Config()
    objective, optimizer = config.objective, config.optimizer
    assert (objective.name, objective.aggregation, objective.clip_low, objective.clip_high) == (
        "grpo",
        "token",
        0.2,
        0.2,
    )
    assert (objective.advantage.scale, objective.kl_coefficient, objective.kl_estimator) == ("group_std", 0.0, "k3")
    assert (optimizer.name, optimizer.betas, optimizer.eps, optimizer.clip_grad) == ("adam", (0.9, 0.999), 1e-8, 1.0)
    assert (config.rollout.temperature, config.rollout.top_p, config.rollout.top_k) == (1.0, 1.0, 0)
    assert (config.replay.prompt_gradient, config.train.updates_per_rollout) == ("full", 1)


def test_metric_names() -> None:
    assert list(METRIC_NAMES) == METRICS.split()
    assert CLAIM_NAMES == ("gradient", "state_age", "layout")


def test_exit_statuses() -> None:
    assert (cli.DONE, cli.BAD_INPUT, cli.DOES_NOT_FIT, cli.INTERRUPTED) == (0, 2, 3, 130)
