"""Megatron-core's GPTModel, run segment by segment on a state; knows nothing of scheduling."""
