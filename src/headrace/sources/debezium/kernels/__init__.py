"""Compiled kernels that scan JSON and convert values."""
