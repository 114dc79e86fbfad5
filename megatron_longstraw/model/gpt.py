"""The model: Megatron's GPTModel, one segment at a time, with log-probs in place of logits."""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor
from torch.nn import functional

from megatron_longstraw.kernels.token_logprob import token_logprob
from megatron_longstraw.model.rope import RotaryTable
from megatron_longstraw.parallel.vocabulary import gather_rows, own_rows, vocabulary_shard
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
        if self.config.sequence_parallel:
            # Each tensor rank holds equally many tokens between the layers' parts; attention passes over the padding.
            input_ids = functional.pad(input_ids, (0, -input_ids.shape[1] % self.config.tensor_model_parallel_size))
        return super().forward(input_ids, position_ids=None, attention_mask=None, packed_seq_params=context)

    def _postprocess(self, hidden_states: Tensor, *args: Any, packed_seq_params: SegmentContext, **kwargs: Any) -> Any:
        context = packed_seq_params
        if not self.post_process:
            return hidden_states
        if context.state_only:
            return hidden_states.sum()
        weight, group = self.output_weight, self.pg_collection.tp
        rows = self._vocabulary_rows
        if context.phase is Phase.DECODE:
            assert context.rotary is not None
            hidden = self._all_tokens(hidden_states)[context.rotary[0].shape[0] - 1]
            logits = (hidden @ weight.t()).to(torch.promote_types(weight.dtype, torch.float32))
            return gather_rows(group, logits, rows, self.real_vocabulary)
        assert context.head_index is not None
        assert context.head_targets is not None
        predicting = self._all_tokens(hidden_states).flatten(0, 1)[context.head_index]
        if not self.config.sequence_parallel:
            # Every rank has all tokens; what its rows of the vocabulary want of them is summed in backward.
            predicting = copy_to_tensor_model_parallel_region(predicting, group=group)
        return token_logprob(
            predicting,
            weight,
            context.head_targets,
            temperature=context.temperature,
            shard=vocabulary_shard(group, rows),
        )

    def _all_tokens(self, hidden: Tensor) -> Tensor:
        """The hidden states of all tokens; in backward the ranks' gradients are summed and each keeps its tokens."""
        if not self.config.sequence_parallel:
            return hidden
        return gather_from_sequence_parallel_region(hidden, group=self.pg_collection.tp)

    @property
    def output_weight(self) -> Tensor:
        """This rank's rows of the output projection for real tokens, `[own rows, hidden]`."""
        rows = own_rows(self.pg_collection.tp, self._vocabulary_rows, self.real_vocabulary)
        return self._output_rows[rows]

    @property
    def _vocabulary_rows(self) -> int:
        return self._output_rows.shape[0]

    @property
    def _output_rows(self) -> Tensor:
        shared = self.share_embeddings_and_output_weights
        return self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
