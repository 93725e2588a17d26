"""ScyllaDB's CDC log: written, read, and turned back into statements."""
