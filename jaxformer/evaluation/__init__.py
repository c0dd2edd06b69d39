"""Scores with signatures, significance, and comparisons of systems."""
