"""Ways to spread a data set over clients: seeded, pure, every sample used at most once unless `reuse` is asked for."""
