"""What a segment's forward needs to know, carried through Megatron's layers as its `packed_seq_params`."""

from dataclasses import dataclass

from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from megatron_longstraw.state.runs import DecodeState, RunState
from megatron_longstraw.types import Phase


@dataclass
class SegmentContext(PackedSeqParams):
    """One segment's forward, from phase to state.

    Args:
        phase: what the forward is for.
        run: the state the segment reads, and where it writes; a `DecodeState` in phase DECODE.
        start: absolute position of the segment's first token.
        store: whether layers append the segment's state to the run's pages.
        inject: whether backward adds the cotangents that later segments left for this segment's own state.
        rotary: cosine and sine of the segment's positions, each `[tokens, 1, 1, rotary_dim]`; the model fills it.
        head_index: which of the flattened `tokens * rows` hidden states predict a target; None where nobody reads
            the output but for its state.
        head_targets: the target of each, `[predictions]` int64.
        temperature: divides the logits.
    """

    phase: Phase = Phase.CAPTURE
    run: RunState | DecodeState | None = None
    start: int = 0
    store: bool = False
    inject: bool = False
    rotary: tuple[Tensor, Tensor] | None = None
    head_index: Tensor | None = None
    head_targets: Tensor | None = None
    temperature: float = 1.0

    @property
    def state_only(self) -> bool:
        """Whether the segment is run for its state alone: no logits, and no output of the last layer."""
        return self.phase in (Phase.CAPTURE, Phase.PROMPT_BACKWARD)
