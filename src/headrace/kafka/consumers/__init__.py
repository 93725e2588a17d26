"""Consumers of Headrace's own topics: `consume`, `changes`, `blocks` and `tail`."""
