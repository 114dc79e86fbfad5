"""Sampling a group from a captured prompt, or reading it from a file."""
