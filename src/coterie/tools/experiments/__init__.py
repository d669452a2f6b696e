"""Comparisons and searches over many runs."""
