"""Megatron-core's DistributedDataParallel and optimizer."""

import math
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import MegatronModule
from torch import nn

from megatron_longstraw.config.schema import OptimizerConfig
from megatron_longstraw.device.cpu import default_device, optimizer_device
from megatron_longstraw.engine.base import StepResult
from megatron_longstraw.parallel.layout import ParallelLayout


class MegatronEngine:
    """Gradients in DDP's contiguous buffers, in float32 or wider; the optimizer on float32 main weights for bfloat16.

    Args:
        model: this rank's part of the model.
        layout: sizes and groups.
        settings: the optimizer's section.
    """

    def __init__(self, model: MegatronModule, layout: ParallelLayout, settings: OptimizerConfig) -> None:
        self.layout = layout
        self._clip_grad = settings.clip_grad
        self._is_float64 = model.config.params_dtype is torch.float64
        bfloat16 = model.config.bf16
        self._model = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=bfloat16, overlap_grad_reduce=False),
            model,
            pg_collection=layout.groups,
        )
        optimizer_config = MegatronOptimizerConfig(
            optimizer=settings.name,
            lr=settings.lr,
            min_lr=0.0,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0],
            adam_beta2=settings.betas[1],
            adam_eps=settings.eps,
            # Megatron's default is 0.9; `sgd` is plain.
            sgd_momentum=0.0,
            clip_grad=0.0 if self._is_float64 else settings.clip_grad,
            bf16=bfloat16,
            params_dtype=model.config.params_dtype,
        )
        with optimizer_device():
            self.optimizer = get_megatron_optimizer(optimizer_config, [self._model])
        self._complete_state()

    @property
    def model(self) -> nn.Module:
        """The wrapped model."""
        return self._model

    def zero_grad(self) -> None:
        """Clear the gradient buffers, in place."""
        self._model.zero_grad_buffer()
        self.optimizer.zero_grad()

    def finalize(self, denominator: float) -> None:
        """Reduce gradients over ranks once, and divide by the sum of all ranks' denominators.

        Args:
            denominator: this rank's; where the sum is 0, nothing is divided.
        """
        # float64, since Megatron would turn an integer's reciprocal into float32.
        count = torch.tensor(denominator, dtype=torch.float64, device=default_device())
        finalize_model_grads([self._model], count, pg_collection=self.layout.groups)

    @torch.no_grad()
    def step(self, lr: float) -> StepResult:
        """Clip, and apply the optimizer; a gradient that is not finite leaves the weights as they are.

        Args:
            lr: the learning rate of this step.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with optimizer_device():
            self.optimizer.prepare_grads()
            grad_norm = self._float64_norm() if self._is_float64 else float(self.optimizer.get_grad_norm())
            if not math.isfinite(grad_norm):
                return StepResult(0.0, applied=False)
            if self._is_float64 and 0 < self._clip_grad < grad_norm:
                self._model.scale_gradients(self._clip_grad / (grad_norm + 1e-6))
            self.optimizer.step()
        return StepResult(grad_norm, applied=True)

    def _float64_norm(self) -> float:
        """The gradient's norm over all ranks of the model; Megatron's is a float32 whatever the gradient's dtype."""
        # What every tensor rank has a copy of counts once.
        own = [p for p in self._model.parameters() if param_is_not_tensor_parallel_duplicate(p)]
        square = torch.zeros((), dtype=torch.float64, device=default_device())
        for parameter in own:
            square += parameter.main_grad.pow(2).sum()
        dist.all_reduce(square, group=self.layout.groups.mp)
        return math.sqrt(float(square))

    def sharded_state_dict(self, *, is_loading: bool) -> dict[str, Any]:
        """Weights and optimizer for megatron-core's distributed checkpointing."""
        # The wrapper would put its own name before every weight's, and a bare model could not read the checkpoint.
        model = self._model.module.sharded_state_dict()
        with optimizer_device():
            # There is always a whole state, so loading has none to make first; for sgd Megatron would not know how to.
            optimizer = self.optimizer.sharded_state_dict(model, is_loading=False)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint held, in place."""
        self._model.load_state_dict(state["model"])
        with optimizer_device():
            optimizer = state["optimizer"].get("optimizer", state["optimizer"])
            if self._torch_adam:
                # Megatron saves no step of 0.
                optimizer["state"].setdefault("common_step", torch.tensor(0.0))
            self.optimizer.load_state_dict(state["optimizer"])

    @property
    def _torch_adam(self) -> bool:
        return isinstance(self.optimizer.chained_optimizers[0].optimizer, torch.optim.AdamW)

    def _complete_state(self) -> None:
        """Make the optimizer's state before its first step, so that a checkpoint holds the same tensors at any time."""
        for part in self.optimizer.chained_optimizers:
            # None for sgd, which has no state.
            if part.init_state_fn is not None:
                part.init_state_fn(part.optimizer, part.config)
            if self._torch_adam:
                # Megatron makes the moments only, and torch makes nothing where there is something.
                for state in part.optimizer.state.values():
                    state.setdefault("step", torch.tensor(0.0))
