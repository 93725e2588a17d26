"""Column types: how each source type is stored in ClickHouse and read back."""
