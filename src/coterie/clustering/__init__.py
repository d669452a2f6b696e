"""Pure functions on arrays: k-means, linkage, cosine similarity, averages, and how many clusters there are."""
