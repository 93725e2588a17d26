"""Tables of the workload in engines that count rows, compared with the source: each change must be stored exactly once.

The sink's own sums must equal the source's rows, and the history must equal the source's log, as `mysql-replication` reads it.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.model.version import unpack_version
from testkit.oracles.binlogs import Place, open_logbook
from testkit.oracles.both_ends import source_rows

ENGINES = {"accounts": "collapsing", "parts": "versioned", "notes": "history"}
COLUMNS = {"accounts": "id, owner, balance, changed", "parts": "account, line, amount", "notes": "title, body, stars"}


def check_sums(client: Client, server: PrivateServer, database: str, table: str) -> None:
    """Check that each row of the source has the sum 1 in the target, and that no other row has a sum."""
    columns = COLUMNS[table]
    sums = client.query(f"SELECT {columns}, toInt32(sum(_sign)) AS times FROM `{database}`.{table} GROUP BY {columns} HAVING times != 0")
    expected = Counter(source_rows(server, database, table))
    found = Counter({tuple(row[:-1]): int(row[-1]) for row in sums.result_rows})
    assert (found - expected, expected - found) == (Counter(), Counter()), table
    assert found == expected
    final = client.query(f"SELECT {columns} FROM `{database}`.{table} FINAL WHERE _sign = 1").result_rows
    assert Counter(map(tuple, final)) == expected, table


def check_history(client: Client, server: PrivateServer, database: str) -> int:
    """Check that the history holds each snapshot row and each later change once; return the number of changes."""
    history = f"`{database}`.notes"
    found = Counter(tuple(row) for row in client.query(f"SELECT _operation, {COLUMNS['notes']} FROM {history}").result_rows)
    read_at = f"SELECT uniqExact(_version), max(_version) FROM {history} WHERE _operation = 'snapshot'"
    [(positions, position)] = client.query(read_at).result_rows
    assert positions == 1
    _, number, offset = unpack_version(position)
    with open_logbook(server, database) as book:
        changes = book.replicated(Place(f"{book.place().file.rpartition('.')[0]}.{number:06}", offset), "notes")
    moves = {n for n, (old, new) in enumerate(pairwise(changes)) if old[0] == "before" and old[1]["title"] != new[1]["title"]}
    logged = Counter((kind, *row.values()) for n, (kind, row) in enumerate(changes) if kind != "before" or n in moves)
    written = Counter({row: times for row, times in found.items() if row[0] != "snapshot"})
    assert (written - logged, logged - written) == (Counter(), Counter())
    rows = Counter({row[1:]: times for row, times in found.items() if row[0] == "snapshot"})
    for kind, row in changes:
        rows[tuple(row.values())] += -1 if kind in ("before", "delete") else 1
    assert +rows == Counter(source_rows(server, database, "notes"))
    return sum(logged.values())
