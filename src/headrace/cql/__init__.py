"""CQL for sources and sinks: types, tables, the layout of log tables, blocks of raw rows, sessions."""
