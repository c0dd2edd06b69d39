"""Saved checkpoints of a run, and averages of them."""
