"""Process groups and what travels over them; the only place that touches torch.distributed."""
