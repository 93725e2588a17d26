"""Receives the binary log: replication client, relay files, batch planner."""
