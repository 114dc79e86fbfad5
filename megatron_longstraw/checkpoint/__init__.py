"""Weights in, checkpoints out and in again."""
