"""The parallel layout: the sizes of its axes, and the process groups, which are passed on and never looked up."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from megatron_longstraw.device.cpu import default_device
from megatron_longstraw.errors import InputError


@dataclass(frozen=True)
class ParallelLayout:
    """Sizes of the axes and Megatron's collection of process groups; a single process has groups of one.

    Args:
        tensor: tensor-parallel size.
        pipeline: pipeline-parallel size.
        context: context-parallel size.
        expert: expert-parallel size.
        data: data-parallel size.
        groups: the groups, as Megatron-core takes them.
        sequence_parallel: whether tensor ranks split what lies between the tensor-parallel parts over tokens.
    """

    tensor: int
    pipeline: int
    context: int
    expert: int
    data: int
    groups: ProcessGroupCollection
    sequence_parallel: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by name, as every line of metrics carries them."""
        return {axis: getattr(self, axis) for axis in ("tensor", "pipeline", "context", "expert", "data")}

    @property
    def is_main_rank(self) -> bool:
        """Whether this rank writes the run's files."""
        return dist.get_rank() == 0


@contextmanager
def process_groups(
    *, tensor: int = 1, pipeline: int = 1, context: int = 1, expert: int = 1, sequence_parallel: bool = False
) -> Iterator[ParallelLayout]:
    """Set up torch.distributed and Megatron's groups, and take them down at the end.

    Under a launcher (`RANK` and `WORLD_SIZE` set) it joins the launcher's world; otherwise it is a world of one.

    Raises:
        InputError: the sizes do not divide the number of ranks.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model_ranks = tensor * pipeline * context
    if world % model_ranks:
        raise InputError(
            f"tensor x pipeline x context = {model_ranks} does not divide the {world} ranks started", key="parallel"
        )
    backend = "gloo" if default_device().type == "cpu" else "nccl"
    with tempfile.TemporaryDirectory() as folder:
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        try:
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=tensor,
                pipeline_model_parallel_size=pipeline,
                context_parallel_size=context,
                expert_model_parallel_size=expert,
            )
            if sequence_parallel:
                # Megatron asks for these random streams also where nothing is dropped out.
                model_parallel_cuda_manual_seed(0)
            yield ParallelLayout(
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                expert=expert,
                data=world // model_ranks,
                groups=ProcessGroupCollection.use_mpu_process_groups(),
                sequence_parallel=sequence_parallel,
            )
        finally:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
