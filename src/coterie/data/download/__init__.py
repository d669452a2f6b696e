"""Fetching public data sets and keeping them."""
