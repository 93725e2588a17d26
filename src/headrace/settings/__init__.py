"""Settings of a pipe: declared once, with validation, files and reference page."""
