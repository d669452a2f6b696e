"""One paper (or baseline) is one file that reads like its pseudocode."""
