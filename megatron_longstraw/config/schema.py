"""Every key of a run's configuration, one frozen dataclass a section; the text under a key is its documentation.

A part of the program takes its own section (`ReplayConfig`), never the whole `Config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal


@dataclass(frozen=True)
class Bounds:
    """The numbers that a key allows.

    Args:
        low: the smallest.
        high: the largest.
        open_low: `low` itself is not allowed.
        open_high: `high` itself is not allowed.
    """

    low: float
    high: float = float("inf")
    open_low: bool = False
    open_high: bool = False


Dtype = Literal["float32", "bfloat16", "float64"]
Count = Annotated[int, Bounds(1)]
CountOrZero = Annotated[int, Bounds(0)]
Seed = Annotated[int, Bounds(0, 2**32 - 1)]
NotNegative = Annotated[float, Bounds(0)]
Positive = Annotated[float, Bounds(0, open_low=True)]
Beta = Annotated[float, Bounds(0, 1, open_high=True)]
Share = Annotated[float, Bounds(0, 1)]
PositiveShare = Annotated[float, Bounds(0, 1, open_low=True)]


@dataclass(frozen=True)
class ModelInitConfig:
    """`model.init`: random weights in place of trained ones."""

    seed: Seed | None = None
    """Draw the weights at random with this seed, and take only the architecture from the folder; null reads them."""


@dataclass(frozen=True)
class ModelConfig:
    """`model`: the policy. Give one of `hf` and `checkpoint`."""

    hf: str | None = None
    """A directory in the format of Hugging Face: config.json, safetensors, tokenizer."""
    checkpoint: str | None = None
    """A checkpoint to start from, weights only: a run directory, its `checkpoints`, or one `iter_NNNNNNN` of it."""
    init: ModelInitConfig = field(default_factory=ModelInitConfig)
    """Random weights in place of trained ones."""
    dtype: Dtype = "float32"
    """Dtype of weights and activations."""


@dataclass(frozen=True)
class ParallelConfig:
    """`parallel`: how many ranks share a model; the ranks that are left are data-parallel."""

    tensor: Count = 1
    """Ranks that share each layer's heads, MLP and vocabulary."""
    pipeline: Count = 1
    """Ranks that hold consecutive layers."""
    context: Count = 1
    """Ranks that share the tokens of each segment."""
    expert: Count = 1
    """Ranks that share the experts of a mixture."""
    sequence_parallel: bool = False
    """Split what lies between the tensor-parallel parts over tokens; needs tensor > 1."""


@dataclass(frozen=True)
class EngineConfig:
    """`engine`: what holds gradients and optimizer state."""

    name: Literal["megatron", "deepspeed"] = "megatron"
    """megatron: Megatron's DDP and optimizer; deepspeed: ZeRO."""
    deepspeed_config: str | None = None
    """DeepSpeed's JSON file; read with `name: deepspeed` only."""


@dataclass(frozen=True)
class DataConfig:
    """`data`: the prompts."""

    prompts: str | None = None
    """JSON lines or parquet, a prompt a row. Every other column goes to the reward function by name."""
    shuffle: bool = True
    """Visit the prompts in a random order, another one each epoch; false keeps the file's order."""
    seed: Seed = 0
    """Seed of that order."""
    max_prompt_tokens: Count | None = None
    """The longest prompt, in tokens; null sets no limit."""
    overlong: Literal["error", "truncate_left", "drop"] = "error"
    """A longer prompt stops the run, keeps its last `max_prompt_tokens` tokens, or is passed over."""
    prompt_key: str = "prompt"
    """The column with the prompt: text, or a list of chat messages. A column `prompt_ids` is used as it is."""
    documents_key: str = "documents"
    """The column that lists text files to put into the prompt; paths are relative to the folder of the data file."""
    documents_anywhere: bool = False
    """Allow documents outside the folder of the data file."""
    token_cache: str | None = None
    """Folder of the documents' token ids; null: `longstraw/tokens` in `$XDG_CACHE_HOME`, or in `~/.cache`."""


@dataclass(frozen=True)
class RolloutConfig:
    """`rollout`: where a group's responses come from."""

    source: Literal["sample", "recorded"] = "sample"
    """sample: the policy; recorded: a file, group by group in its order."""
    path: str | None = None
    """The file of recorded rollouts, JSON lines; read with `source: recorded` only."""
    group_size: Count = 8
    """Responses sampled for each prompt, at least 2. Recorded groups are as large as their line says."""
    max_response_tokens: Count = 256
    """A sampled response ends here at the latest, in tokens; also the constant of `aggregation: constant`."""
    temperature: Positive = 1.0
    """Divides the logits: in sampling, and in every log-prob."""
    top_p: PositiveShare = 1.0
    """Sample from the fewest most likely tokens that hold this share of the probability; 1 switches it off."""
    top_k: CountOrZero = 0
    """Sample from this many of the most likely tokens; 0 switches it off."""
    stop: tuple[str, ...] = ()
    """Texts at whose end a response ends, besides the model's end-of-sequence tokens."""
    seed: Seed = 0
    """Seed of the sampled tokens."""


RewardStyle = Literal["trl", "verl"]
# The names of rewards/builtin.py, here so that a wrong one is found before anything is loaded.
READY_MADE_REWARDS = (
    "exact_match",
    "contains",
    "regex",
    "word_f1",
    "numeric_answer",
    "math_verify",
    "length_penalty",
)


@dataclass(frozen=True)
class RewardTermConfig:
    """An entry of `reward.functions`: one of several functions whose weighted sum is the reward."""

    function: str | None = None
    """As `reward.function`."""
    weight: float = 1.0
    """Factor of its reward in the sum."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    """As `reward.kwargs`."""
    style: RewardStyle = "trl"
    """As `reward.style`."""


@dataclass(frozen=True)
class RewardConfig:
    """`reward`: what a response is worth. Give one of `function` and `functions`."""

    function: str | None = None
    """`module:function`, importable from here, or the name of a ready-made one, such as `exact_match`."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    """Handed to the function by name, besides the columns."""
    style: RewardStyle = "trl"
    """trl: `f(prompts, completions, completion_ids, **columns) -> list[float]`, once for a group; verl:
    `compute_score(data_source, solution_str, ground_truth, extra_info) -> float`, once for a response."""
    functions: tuple[RewardTermConfig, ...] = ()
    """Several functions, each `{function, weight, kwargs, style}`; the reward is their weighted sum."""


@dataclass(frozen=True)
class AdvantageConfig:
    """`objective.advantage`: a response's reward compared with its group's."""

    scale: Literal["group_std", "none"] = "group_std"
    """Divide the difference to the group's mean by the group's standard deviation, or by nothing."""
    epsilon: NotNegative = 1e-6
    """Added to the standard deviation."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """`objective`: the loss."""

    name: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = "grpo"
    """Which loss of a token's log-prob."""
    clip_low: Share = 0.2
    """The ratio's lower bound is 1 - clip_low."""
    clip_high: NotNegative = 0.2
    """The ratio's upper bound is 1 + clip_high."""
    kl_coefficient: NotNegative = 0.0
    """Weight of the divergence from the reference policy; 0 needs no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """With d = ref_logp - logp: k1 -d, k2 d**2 / 2, k3 exp(d) - d - 1."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """The mean over tokens, over responses of their tokens' mean, or the sum / (responses * max_response_tokens)."""
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    """A response's reward compared with its group's."""


@dataclass(frozen=True)
class ReplayConfig:
    """`replay`: how prompts and responses are run, and what that holds in memory."""

    segment_tokens: Count = 1024
    """Tokens of one forward, and of the one graph that is alive; a whole batch of branches counts."""
    prompt_gradient: Literal["full", "stop"] | Count = "full"
    """full: exact, through the whole prompt; stop: none; a number: through the prompt's last so many tokens."""
    state_dtype: Literal["auto"] | Dtype = "auto"
    """Dtype of the prompt's state; auto: the model's."""
    cotangent_dtype: Literal["auto"] | Dtype = "auto"
    """Dtype of the state's gradient; auto: float32, or float64 in a float64 model."""
    tier: Literal["device", "host", "disk"] = "device"
    """Where the state lies between uses."""
    page_tokens: Count = 4096
    """Tokens of one page of state."""
    keep_graph_segments: CountOrZero = 0
    """The graphs of so many of the last captured segments are kept, not recomputed: faster, for their memory."""


@dataclass(frozen=True)
class OptimizerConfig:
    """`optimizer`: one step of the weights."""

    name: Literal["adam", "sgd"] = "adam"
    """adam: AdamW; sgd: `w -= lr * (grad + weight_decay * w)`, without momentum."""
    lr: NotNegative = 1e-6
    """Learning rate after the warm-up."""
    weight_decay: NotNegative = 0.0
    """Weight decay."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Adam's decay rates of the first and second moment."""
    eps: NotNegative = 1e-8
    """Adam's epsilon."""
    clip_grad: NotNegative = 1.0
    """The gradient's largest norm over all weights; 0 switches clipping off."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the learning rate falls to 0 over the run's updates, after the warm-up."""
    warmup_steps: CountOrZero = 0
    """Updates before the full learning rate; the first of `n` has `lr / (n + 1)`."""


@dataclass(frozen=True)
class TrainConfig:
    """`train`: how much."""

    steps: Count = 100
    """Steps of the whole run. A step is one rollout and the updates on it."""
    groups_per_step: Count = 8
    """Groups (prompts) of one rollout."""
    groups_per_update: Count | None = None
    """Groups of one optimizer step; null takes all groups of the rollout."""
    updates_per_rollout: Count = 1
    """Passes over the groups of a rollout (GRPO's mu)."""
    seed: Seed = 0
    """Seed of everything random that has no seed of its own."""


@dataclass(frozen=True)
class CheckpointConfig:
    """`checkpoint`: what a stopped run continues from."""

    every: CountOrZero = 50
    """Steps between two checkpoints; 0 saves only at the end and when interrupted."""
    keep: CountOrZero = 2
    """So many of the newest checkpoints stay; 0 keeps all."""


@dataclass(frozen=True)
class WandbConfig:
    """`tracking.wandb`: Weights & Biases."""

    mode: Literal["disabled", "offline", "online"] = "disabled"
    """offline writes files for `wandb sync` and needs neither an account nor a network."""
    project: str = "megatron_longstraw"
    """W&B's project."""
    name: str | None = None
    """The run's name there; null lets W&B choose."""


@dataclass(frozen=True)
class TrackingConfig:
    """`tracking`: what a run shows, besides metrics.jsonl."""

    wandb: WandbConfig = field(default_factory=WandbConfig)
    """Weights & Biases."""
    progress: Literal["auto", "off"] = "auto"
    """auto: live on a terminal, a line a step elsewhere."""


@dataclass(frozen=True)
class Config:
    """The whole configuration."""

    run_dir: str = ""
    """The run's directory; it resumes from there. Empty: `runs/` and the configuration file's name."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The policy."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """How many ranks share a model."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """What holds gradients and optimizer state."""
    data: DataConfig = field(default_factory=DataConfig)
    """The prompts."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Where responses come from."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """What a response is worth."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """The loss."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """How prompts and responses are run."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """One step of the weights."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How much."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """What a stopped run continues from."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """What a run shows."""
