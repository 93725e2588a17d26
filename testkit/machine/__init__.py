"""The test machine: a bare Debian, and the distribution of tests over processes."""
