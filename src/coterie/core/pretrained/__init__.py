"""Pretrained networks of other packages, by name; `coterie.zoo` has them too. Each imports its package when built."""
