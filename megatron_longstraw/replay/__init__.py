"""Segments and the order they run in: capture, score, replay of branches, backward through the prompt."""
