"""A live page over the runs of a directory. Needs the extra `dashboard`; see docs/dashboard.md."""
