"""Reads whole tables in chunks, each at a known log position."""
