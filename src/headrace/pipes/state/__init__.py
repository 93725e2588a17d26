"""The state directory of a pipe: files, seal, stored settings, requests."""
