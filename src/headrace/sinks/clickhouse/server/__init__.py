"""The connection to a ClickHouse server: URL, client, limits, errors, quoting, options."""
