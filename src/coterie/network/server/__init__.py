"""The server's side of a federation of real clients."""
