"""What earlier tokens leave behind: pages of per-token state, and the cotangent pages beside them."""
