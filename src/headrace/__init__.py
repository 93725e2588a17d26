"""Headrace replicates mutable operational data, continuously and exactly, into analytics."""

__version__ = "0.1.0"
