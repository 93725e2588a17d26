"""ClickHouse (chDB) behind HTTP: one process owns a directory, all clients use ClickHouse's HTTP interface.

chDB allows one process per directory, and its process must not fork. So no other module opens a directory: `server.serve` does, in a
process that `process.EmbeddedServer` starts or finds. The sink, the command line and people are clients of it.
"""
