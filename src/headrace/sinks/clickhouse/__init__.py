"""ClickHouse over HTTP, a server or the embedded one: versioned upserts and tombstones that the table's own merge resolves."""

import logging
import os

# The driver logs each failed request as well as raising it; the raised one is reported by us, once.
logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)
# The driver's compiled parser crashes where a server claims impossible lengths. Its Python parser serves for catalogues and counts.
os.environ.setdefault("CLICKHOUSE_CONNECT_USE_C", "0")
