"""Column codecs: how each source kind is stored in a ClickHouse type and read back."""
