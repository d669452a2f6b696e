"""A first configuration for a user's own file: what its columns have, what they are for, and the YAML that says so."""
