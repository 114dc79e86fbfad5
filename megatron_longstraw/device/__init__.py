"""The device a rank computes on, and what stands in for CUDA where there is none."""
