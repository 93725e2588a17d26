"""Pipes: configuration, wiring and state. What joins a source to a sink and remembers how far it got."""
