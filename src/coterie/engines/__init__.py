"""Engines: they carry tasks to the clients and bring their answers back."""
