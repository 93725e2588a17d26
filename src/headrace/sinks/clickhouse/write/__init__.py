"""Writes change blocks, each exactly once."""
