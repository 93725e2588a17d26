"""Servers, generators, fault injection and oracles for tests and benchmarks."""
