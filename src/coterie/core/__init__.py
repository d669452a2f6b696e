"""The vocabulary of the library: tasks, models as vectors, per-client tables, errors, files.

It imports no sibling package.
"""
