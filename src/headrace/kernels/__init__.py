"""Base of the compiled kernels: raw memory, bounded loads and copies, and the numba cache."""
