"""Life after training: place and predict for clients, export models, serve them over HTTP, watch for drift."""
