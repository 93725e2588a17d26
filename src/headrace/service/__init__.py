"""Pipes as a service: several in one process, each on its own feet, seen and steered from outside."""
