"""Prompts and recorded rollouts: files in, records out."""
