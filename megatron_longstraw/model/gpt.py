"""The model: Megatron's GPTModel, one segment at a time, with log-probs in place of logits."""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

from megatron_longstraw.kernels.token_logprob import token_logprob
from megatron_longstraw.model.rope import RotaryTable
from megatron_longstraw.state.context import SegmentContext
from megatron_longstraw.types import Phase


class SegmentModel(GPTModel):
    """GPTModel whose forward takes a segment and its context; what it returns depends on the phase.

    Args:
        rotary_table: gives cosine and sine of positions.
        real_vocabulary: rows of the vocabulary that are real; the rest is padding and has no probability.
        kwargs: GPTModel's.
    """

    def __init__(self, *, rotary_table: RotaryTable, real_vocabulary: int, **kwargs: Any) -> None:
        super().__init__(position_embedding_type="none", **kwargs)
        self.rotary_table = rotary_table
        self.real_vocabulary = real_vocabulary

    def forward(self, input_ids: Tensor, context: SegmentContext) -> Any:
        """Run one segment.

        Args:
            input_ids: `[rows, tokens]` int64.
            context: what the forward is for and the state it reads; its `rotary` is filled here.

        Returns:
            By phase, on the last pipeline stage: CAPTURE and PROMPT_BACKWARD a scalar 0, the root of the backward from
            state; SCORE and REPLAY log-probs and entropies, each `[predictions]`; DECODE logits `[rows, vocabulary]`
            in float32 or wider, not divided by the temperature. On other stages hidden states.
        """
        context.rotary = self.rotary_table(context.start, input_ids.shape[1], self.config.params_dtype)
        return super().forward(input_ids, position_ids=None, attention_mask=None, packed_seq_params=context)

    def _postprocess(self, hidden_states: Tensor, *args: Any, packed_seq_params: SegmentContext, **kwargs: Any) -> Any:
        context = packed_seq_params
        if not self.post_process:
            return hidden_states
        if context.state_only:
            return hidden_states.sum()
        weight = self.output_weight
        if context.phase is Phase.DECODE:
            return (hidden_states[-1] @ weight.t()).to(torch.promote_types(weight.dtype, torch.float32))
        assert context.head_index is not None
        assert context.head_targets is not None
        predicting = hidden_states.flatten(0, 1)[context.head_index]
        return token_logprob(predicting, weight, context.head_targets, temperature=context.temperature)

    @property
    def output_weight(self) -> Tensor:
        """Rows of the output projection for real tokens, `[vocabulary, hidden]`."""
        shared = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
        return weight[: self.real_vocabulary]
