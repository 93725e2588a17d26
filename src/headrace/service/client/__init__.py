"""Clients of a running `headrace run`: discovery and control over HTTP."""
