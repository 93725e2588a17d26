"""Pipes for tests: as processes, and in the process of the test."""
