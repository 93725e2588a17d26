"""ClickHouse over HTTP, a server or the embedded one: versioned upserts and tombstones that the table's own merge resolves."""
