"""Encodes change blocks and writes each exactly once."""
