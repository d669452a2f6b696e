"""Methods with a part taken away, as their papers compare them."""
