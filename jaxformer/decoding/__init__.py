"""Decoding: search over a step function, scores of hypotheses, and text in, text out."""
