"""The ScyllaDB source: reads CDC logs and snapshots of base tables."""
