"""The public data sets."""
