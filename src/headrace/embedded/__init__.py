"""ClickHouse (chDB) behind HTTP: one process owns a directory, every client speaks ClickHouse's HTTP interface to it.

chDB allows one process per directory and must never be forked into. So nothing in Headrace opens a directory itself: `server.serve` does,
in a process of its own that `process.EmbeddedServer` starts and finds. The sink, the command line and people are equal clients of it.
"""
