"""Rows as their postimages show them, in tables that keep the newest version of each row."""
