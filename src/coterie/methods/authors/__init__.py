"""Methods as their authors published them in code, where that differs from the paper: only what differs."""
