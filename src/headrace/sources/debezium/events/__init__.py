"""Parsed events: records, topics, versions and options."""
