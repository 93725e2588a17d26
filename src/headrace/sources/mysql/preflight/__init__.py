"""Checks of a server before a pipe starts."""
