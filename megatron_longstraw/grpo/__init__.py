"""The maths of GRPO: pure functions of tensors, ragged and flat, importing only torch."""
