"""Attention, learning curves, comparisons: pictures and pages for a browser."""
