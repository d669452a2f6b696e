"""What runs at a client: one visit, local training, what the client keeps."""
