"""ClickHouse's HTTP interface: connections, request options, content encodings."""
