"""Compares a source with its copy: digests of regions, the rows that differ, whether they are only behind, and their repair."""
