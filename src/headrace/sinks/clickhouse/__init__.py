"""ClickHouse sink over HTTP, for a server or the embedded engine: versioned upserts and tombstones that the table's engine merges."""

import logging
import os

# The driver both logs and raises each failed request; Headrace reports the raised error.
logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)
# The driver's compiled parser crashes on invalid lengths. Its Python parser is fast enough for system tables and counts.
os.environ.setdefault("CLICKHOUSE_CONNECT_USE_C", "0")
