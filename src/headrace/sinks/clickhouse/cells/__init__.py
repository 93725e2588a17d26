"""ScyllaDB's cells in ClickHouse: deltas in any order and any number of times, merged by the tables themselves, shown by a view."""
