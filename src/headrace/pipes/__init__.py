"""Pipes: configuration, wiring and state. Joins a source to a sink and stores the progress."""
