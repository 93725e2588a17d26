"""Replays ScyllaDB's log into another CQL cluster, each cell with its own timestamp and expiry."""
