"""Target tables: created or existing, their engines, keys and metadata columns."""
