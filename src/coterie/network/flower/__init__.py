"""Flower as the transport: server, client and the processes around them."""
