"""Methods as in their authors' code, where it differs from the paper. Each file contains only the difference."""
