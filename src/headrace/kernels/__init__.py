"""Compiled code: raw memory, bounded loads and copies, and where what numba compiled is kept."""
