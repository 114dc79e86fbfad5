"""What a run shows and keeps about itself: metrics.jsonl, the progress display, Weights & Biases."""
