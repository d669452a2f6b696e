"""Ablations: methods without one of their parts, as compared in their papers."""
