"""Exact GRPO on million-token prompts, on a memory budget that stays fixed."""

__version__ = "0.1.0"
