"""Clients spread over a Ray cluster."""
