"""What ScyllaDB's log, its readers and its writers have in common: CQL's types and tables, the log table's shape, blocks of raw rows."""
