"""Compiled kernels that decode the binary log and result sets."""
