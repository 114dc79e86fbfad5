"""Stand-in for what Megatron-core asks of CUDA: the same code path on the CPU; inactive where CUDA exists."""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# What Megatron's optimizer compares `Tensor.type()` with; float64 takes the path of float32.
_TYPE_NAMES = {
    torch.float64: "torch.cuda.FloatTensor",
    torch.float32: "torch.cuda.FloatTensor",
    torch.float16: "torch.cuda.HalfTensor",
    torch.bfloat16: "torch.cuda.BFloat16Tensor",
}


def default_device() -> torch.device:
    """The device of this rank's tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class _OnCpu(TorchFunctionMode):
    """Turns `device="cuda"` into the CPU, and answers `Tensor.type()` with the CUDA name."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return _TYPE_NAMES.get(args[0].dtype, func(*args))
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class _TorchOnCpu(ModuleType):
    """The torch module with factory functions that turn `device="cuda"` into the CPU, at no cost to other calls."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        """Like `torch.zeros`."""
        return torch.zeros(*args, device="cpu" if str(device).startswith("cuda") else device, **kwargs)


@contextlib.contextmanager
def optimizer_device() -> Iterator[None]:
    """Surround calls of Megatron's optimizer, which names the device and its tensor types literally."""
    with contextlib.nullcontext() if torch.cuda.is_available() else _OnCpu():
        yield


def _set_rng_state(state: torch.Tensor, device: Any = -1, graph_safe: bool = False) -> None:
    torch.set_rng_state(state)


def _get_rng_state(device: Any = "cuda", clone: bool = False, graph_safe: bool = False) -> torch.Tensor:
    return torch.get_rng_state()


def _splits_on_cpu(dispatcher: Any, point: str, tokens_per_expert: torch.Tensor | None = None) -> torch.Tensor | None:
    """Megatron's copy of token counts to the CPU, where they already are: the collectives want them as numpy."""
    if point == dispatcher.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            splits = getattr(dispatcher, name)
            if isinstance(splits, torch.Tensor):
                setattr(dispatcher, name, splits.numpy())
    return tokens_per_expert


def install() -> None:
    """Put the stand-in in place, once per process; where CUDA exists nothing but a name that Megatron lacks."""
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    if not moe_utils.HAVE_TE:
        # The router asks for it on any device, and the module defines it with Transformer Engine only.
        moe_utils.te_general_gemm = None
    if torch.cuda.is_available():
        return
    # Megatron decorates small functions with torch.compile, which costs tens of seconds per process here.
    torch.compiler.set_stance("force_eager")
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.get_rng_state = _get_rng_state
    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]
    random._set_cuda_rng_state = _set_rng_state
    random._get_cuda_rng_state = _get_rng_state
    schedules.torch = _TorchOnCpu()
    # No stream to make: the counts that it would copy are on the CPU.
    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = object()
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = _splits_on_cpu
