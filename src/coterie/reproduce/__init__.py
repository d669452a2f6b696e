"""Reproduce the tables of the papers: their numbers next to ours, with the protocol, by one command."""
