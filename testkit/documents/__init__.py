"""Runs the commands and examples of documents."""
