"""Decodes row images into columns."""
