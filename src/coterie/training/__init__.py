"""A run: configuration, the round loop, evaluation, the run directory, results and predictions."""
