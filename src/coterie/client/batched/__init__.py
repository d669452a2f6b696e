"""The same visits for many clients at once, as batched matrix products."""
