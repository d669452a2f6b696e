"""Real clients on a real network: what is said between them and the server, and how it is carried."""
