"""Who carries the questions to the clients."""
