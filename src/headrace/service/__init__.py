"""Runs several isolated pipes in one process and lets clients observe and control them."""
