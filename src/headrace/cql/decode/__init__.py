"""Decodes pages of CQL rows into Arrow arrays with compiled kernels."""
