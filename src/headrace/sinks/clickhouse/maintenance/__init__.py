"""Table set-up, replicas, removal of stale rows and tombstones."""
