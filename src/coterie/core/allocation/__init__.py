"""Memory optimisations for large models. The sequential engine uses none of those that concern training.

heap: a process keeps freed memory instead of returning it to the system. buffers: the models of a round reuse the
memory of the last round's. spill: what a client keeps has pages of its own, or a file if memory runs short.
(`methods.authors.rows` is built on the last: a table of large vectors by client that grows without copying them.)

Reasons and measurements: docs/architecture.md, "Memory". Each is measured by bench/allocation.py; one that no longer
pays should be removed.
"""
