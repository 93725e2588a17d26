"""ScyllaDB cells in ClickHouse: deltas may be written in any order and any number of times; the tables merge them, a view shows the
rows."""
