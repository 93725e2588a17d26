"""Comparing a source with its copy: digests of regions, what differs in them, whether it is only behind, and setting it right."""
