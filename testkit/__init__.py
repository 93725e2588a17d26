"""What tests and benchmarks stand on: real database servers, private and quick to start."""
