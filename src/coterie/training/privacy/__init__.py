"""Differential privacy of clients: what is released, how much noise that needs, and what it has cost so far."""
