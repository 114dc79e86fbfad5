"""Megatron's torch_dist format, written by the process itself, from memory or piece by piece."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import torch as torch_dist
from torch import Tensor

# Key and global offset of a piece, to the piece.
ReadPiece = Callable[[str, tuple[int, ...]], Tensor]


class _InProcessStrategy(torch_dist.TorchDistSaveShardedStrategy):
    """Megatron's own writer keeps a process of its own for the rest of the run, and forks one more for every file."""

    def __init__(self, read_piece: ReadPiece | None) -> None:
        super().__init__("torch_dist", 1)
        self._read_piece = read_piece

    def save(self, sharded_state_dict: Any, checkpoint_dir: str | Path) -> None:
        """Write this rank's part and, on the first rank, the index."""
        by_key, _, _ = torch_dist._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        torch_dist.checkpoint.save(
            torch_dist.mcore_to_pyt_state_dict(by_key),
            storage_writer=torch_dist.FileSystemWriter(checkpoint_dir, thread_count=1),
            planner=_Planner(self._read_piece),
        )


class _Planner(torch_dist.MCoreSavePlanner):
    """Reads a piece in the moment it is written, where the state dict has none of the data."""

    def __init__(self, read_piece: ReadPiece | None) -> None:
        super().__init__(dedup_replicated_tensors=False, flatten_state_dict=False)
        self._read_piece = read_piece

    def resolve_data(self, write_item: Any) -> Any:
        """Give what is to be written."""
        if self._read_piece is None or write_item.tensor_data is None:
            return super().resolve_data(write_item)
        index = write_item.index
        return self._read_piece(index.fqn, tuple(index.offset))


def write(sharded_state_dict: dict[str, Any], folder: str | Path, read_piece: ReadPiece | None = None) -> None:
    """Write a sharded state dict into an existing, empty folder.

    Args:
        sharded_state_dict: as Megatron's modules give it.
        folder: where to.
        read_piece: gives the data of each piece, once, one at a time, with Megatron's prepended axes; the state
            dict's own tensors are then on the meta device. None writes the state dict's tensors.

    Raises:
        OSError: the folder cannot be written, and whatever `read_piece` raises.
    """
    try:
        dist_checkpointing.save(sharded_state_dict, str(folder), _InProcessStrategy(read_piece))
    except torch_dist.checkpoint.CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from error
