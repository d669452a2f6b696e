"""The client's side: its data, its kept state, and the worker that answers visits."""
