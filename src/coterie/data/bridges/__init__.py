"""Data sets of other libraries: torch, Hugging Face datasets, Flower's partitioners. Nothing is downloaded here."""
