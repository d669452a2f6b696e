"""Data sets, ways to spread them over clients, and the Federation they become."""
