"""Parsed CQL statements: their changes, the place of a timestamp, and refused statements."""

from __future__ import annotations

import pytest

from headrace.cql.language.ddl import CqlCatalog
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.statement_capture import Capture, log_block
from headrace.sources.scylla.capture.statements import AssignmentKind, ChangeStatement, parse

DEFINITIONS = """
CREATE TYPE ks.ut (a int, b int);
CREATE TABLE ks.t (pk int, c1 int, c2 int, s int static, v int, l list<int>, m map<int, int>, n set<int>, u ut, PRIMARY KEY (pk, c1, c2))
    WITH CLUSTERING ORDER BY (c1 ASC, c2 DESC);
"""


def one(text: str) -> ChangeStatement:
    (change,) = parse(text).changes
    return change


@pytest.mark.parametrize(
    ("text", "stamped"),
    [
        ("INSERT INTO ks.t (pk) VALUES (1)", "INSERT INTO ks.t (pk) VALUES (1) USING TIMESTAMP 9 "),
        ("INSERT INTO ks.t (pk) VALUES (1) USING TTL 5;", "INSERT INTO ks.t (pk) VALUES (1) USING TIMESTAMP 9 AND TTL 5"),
        ("UPDATE ks.t SET v = ? WHERE pk = ?", "UPDATE ks.t  USING TIMESTAMP 9 SET v = ? WHERE pk = ?"),
        ("UPDATE ks.t USING TTL ? SET v = 1 WHERE pk = 1", "UPDATE ks.t USING TIMESTAMP 9 AND TTL ? SET v = 1 WHERE pk = 1"),
        ("DELETE m[?] FROM ks.t WHERE pk = 1", "DELETE m[?] FROM ks.t  USING TIMESTAMP 9 WHERE pk = 1"),
        # ScyllaDB's USING TIMEOUT, which Cassandra does not accept, is removed.
        ("INSERT INTO ks.t (pk) VALUES (1) USING TIMEOUT 50ms;", "INSERT INTO ks.t (pk) VALUES (1) USING TIMESTAMP 9 "),
        (
            "UPDATE ks.t USING TIMEOUT ? AND TTL ? SET v = 1 WHERE pk = 1",
            "UPDATE ks.t USING TIMESTAMP 9 AND               TTL ? SET v = 1 WHERE pk = 1",
        ),
        (
            "UPDATE ks.t USING TTL 5 AND TIMEOUT 1s500ms SET v = ? WHERE pk = 1",
            "UPDATE ks.t USING TIMESTAMP 9 AND TTL 5                     SET v = ? WHERE pk = 1",
        ),
        ("DELETE FROM ks.t USING TIMEOUT 2s WHERE pk = 1", "DELETE FROM ks.t  USING TIMESTAMP 9                  WHERE pk = 1"),
    ],
)
def test_a_timestamp_can_be_put_into_a_statement(text: str, stamped: str) -> None:
    change = one(text)
    at = change.timestamp_at
    assert change.text[:at] + change.timestamp_form.format(9) + change.text[at:] == stamped
    assert change.timestamp_marker == stamped[: stamped.index("USING")].count("?")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "UPDATE t USING TIMESTAMP 3 AND TIMEOUT 1s AND TTL 5 SET v = 1 WHERE pk = 1",
            "UPDATE t USING TIMESTAMP 3 AND TTL 5 SET v = 1 WHERE pk = 1",
        ),
        ("UPDATE t USING timeout 1s and timestamp 3 SET v = 1 WHERE pk = 1", "UPDATE t USING timestamp 3 SET v = 1 WHERE pk = 1"),
        (
            "BEGIN BATCH USING TIMEOUT 1s AND TIMESTAMP 3 DELETE FROM t USING TIMEOUT 2s WHERE pk = ?; APPLY BATCH",
            "DELETE FROM t WHERE pk = ?",
        ),
    ],
)
def test_a_timeout_is_read_wherever_it_stands_and_left_out(text: str, left: str) -> None:
    batch = parse(text, "ks")
    assert " ".join(batch.changes[0].text.split()) == left
    assert str(batch.timeouts[0]) == "1s"
    stamp = batch.timestamp or batch.changes[0].using.timestamp
    assert str(stamp) == "3"


def test_statements_of_a_batch_keep_their_texts_and_markers() -> None:
    batch = parse(
        "BEGIN BATCH USING TIMESTAMP ? UPDATE t SET v = ? WHERE pk = 1; -- one\n "
        "DELETE l[SCYLLA_TIMEUUID_LIST_INDEX(?)] FROM ks.t WHERE pk = ? INSERT INTO t (pk, v) VALUES (:p, -1) APPLY BATCH;",
        "ks",
    )
    assert [change.table for change in batch.changes] == [TableName("ks", "t")] * 3
    assert [(change.first_marker, change.markers) for change in batch.changes] == [(1, 1), (2, 2), (4, 1)]
    assert [change.text.split()[0] for change in batch.changes] == ["UPDATE", "DELETE", "INSERT"]
    deletion = batch.changes[1]
    start, end = deletion.assignments[0].key_span
    assert deletion.text[start:end] == "SCYLLA_TIMEUUID_LIST_INDEX(?)"
    assert deletion.assignments[0].does is AssignmentKind.LIST_KEY


def test_assignments_are_distinguished() -> None:
    text = "UPDATE ks.t SET a = a + [1], b = [1] + b, c = c - {1}, d += {1: 2}, e -= {1}, f['x'] = 1, g.h = null, \"I\" = ? WHERE pk = 1"
    assert [(assignment.column, assignment.does) for assignment in one(text).assignments] == [
        ("a", AssignmentKind.ADD),
        ("b", AssignmentKind.PREPEND),
        ("c", AssignmentKind.SUBTRACT),
        ("d", AssignmentKind.ADD),
        ("e", AssignmentKind.SUBTRACT),
        ("f", AssignmentKind.ELEMENT),
        ("g", AssignmentKind.FIELD),
        ("I", AssignmentKind.SET),
    ]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM ks.t", "INSERT, UPDATE, DELETE or BEGIN BATCH is expected"),
        ("UPDATE t SET v = 1 WHERE pk = 1", "in no keyspace"),
        ("UPDATE ks.other SET v = 1 WHERE pk = 1", "is not captured"),
        ("INSERT INTO ks.t (pk, c1) VALUES (1)", "differ in number"),
        ("INSERT INTO ks.t (pk, c1, c2) VALUES (1, 2, null)", "column c2 of the key needs a value"),
        ("INSERT INTO ks.t (pk, c1, v) VALUES (1, 2, 3)", "column c2 of the key needs a value"),
        ("INSERT INTO ks.t (pk, v) VALUES (1, 3)", "clustering columns are missing"),
        ("INSERT INTO ks.t (pk, c1, c2, v) VALUES (1, 2, 3, now())", "known to the server alone"),
        ("INSERT INTO ks.t JSON '{}'", "INSERT JSON"),
        ("INSERT INTO ks.t (pk, c1, c2) VALUES (1, 2, 3) IF NOT EXISTS", "condition"),
        ("DELETE FROM ks.t WHERE pk = 1 IF EXISTS", "condition"),
        ("INSERT INTO ks.t (pk, c1, c2) VALUES (1, 2, 3) USING TTL -1", "TTL of -1"),
        ("DELETE FROM ks.t USING TTL 5 WHERE pk = 1", "a DELETE has no TTL"),
        ("UPDATE ks.t USING TTL 5 AND TTL 6 SET v = 1 WHERE pk = 1 AND c1 = 1 AND c2 = 1", "TTL is set twice"),
        ("UPDATE ks.t USING AND TTL 6 SET v = 1 WHERE pk = 1 AND c1 = 1 AND c2 = 1", "TIMESTAMP, TTL or TIMEOUT is expected"),
        ("UPDATE ks.t USING PATIENCE 6 SET v = 1 WHERE pk = 1 AND c1 = 1 AND c2 = 1", "TIMESTAMP, TTL or TIMEOUT is expected"),
        ("BEGIN COUNTER BATCH UPDATE ks.t SET v = v + 1 WHERE pk = 1 APPLY BATCH", "counters"),
        ("BEGIN BATCH USING TTL 5 DELETE FROM ks.t WHERE pk = 1 APPLY BATCH", "a BATCH has no TTL"),
        ("BEGIN BATCH USING TIMESTAMP 1 DELETE FROM ks.t USING TIMESTAMP 2 WHERE pk = 1 APPLY BATCH", "on the BATCH and on its statements"),
        ("UPDATE ks.t SET v = 1 WHERE pk > 1 AND c1 = 1 AND c2 = 1", "needs = or IN"),
        ("UPDATE ks.t SET v = 1 WHERE c1 = 1", "needs = or IN"),
        ("UPDATE ks.t SET v = 1 WHERE pk = 1 AND c1 = 1", "all columns of the primary key"),
        ("UPDATE ks.t SET s = 1 WHERE pk = 1 AND c1 = 1 AND c2 = 2", "partition key alone"),
        ("UPDATE ks.t SET pk = 2 WHERE pk = 1", "cannot be changed"),
        ("UPDATE ks.t SET x = 2 WHERE pk = 1", "there is no column x"),
        ("UPDATE ks.t SET v = v + 1 WHERE pk = 1 AND c1 = 1 AND c2 = 1", "set as a whole"),
        ("UPDATE ks.t SET u = u + {a: 1} WHERE pk = 1 AND c1 = 1 AND c2 = 1", "does not support this operation"),
        ("UPDATE ks.t SET u.z = 1 WHERE pk = 1 AND c1 = 1 AND c2 = 1", "no field z"),
        ("UPDATE ks.t SET m[null] = 1 WHERE pk = 1 AND c1 = 1 AND c2 = 1", "named by null"),
        ("UPDATE ks.t SET l[0] = 1 WHERE pk = 1 AND c1 = 1 AND c2 = 1", "List index 0 out of bound, list has size 0"),
        ("DELETE FROM ks.t WHERE pk = 1 AND c2 = 1", "cannot be restricted"),
        ("DELETE FROM ks.t WHERE pk = 1 AND v = 1", "cannot be restricted"),
        ("DELETE FROM ks.t WHERE pk = 1 AND (c1, c2) > (1, 2)", "differ in order or position"),
        ("DELETE FROM ks.t WHERE pk = 1 AND c1 > 1 AND c1 > 2", "one bound on each side"),
        ("DELETE FROM ks.t WHERE pk = 1 AND (c2, c1) = (1, 2)", "cannot be restricted"),
        ("DELETE FROM ks.t WHERE pk = null", "cannot be null"),
        ("DELETE FROM ks.t WHERE token(pk) = 1", "token"),
        ("UPDATE ks.t SET v = ? WHERE pk = 1 AND c1 = 1 AND c2 = 1", "no parameter for marker 1"),
    ],
)
def test_what_cannot_be_captured_is_refused(statement: str, said: str) -> None:
    capture = Capture(CqlCatalog().apply_all(DEFINITIONS).tables.values())
    with pytest.raises(DefiniteError, match=said):
        capture.log(statement)
    assert not capture.state.partitions


def test_parameters_of_in_and_tuples() -> None:
    capture = Capture(CqlCatalog().apply_all(DEFINITIONS).tables.values())
    rows = capture.log("DELETE FROM ks.t WHERE pk IN ? AND (c1, c2) IN ?", ([1, 2], [(1, 2), (3, 4)]))
    assert [int.from_bytes(row.values["c2"], "big") for row in rows] == [2, 4, 2, 4]
    rows = capture.log("UPDATE ks.t SET v = 1 WHERE pk = :p AND (c1, c2) = :c", {"p": 1, "c": (5, 6)})
    assert [int.from_bytes(row.values["c1"], "big") for row in rows] == [5]
    block = log_block(capture.table(TableName("ks", "t")), rows, 7)
    assert block.rows.num_rows == 1
    assert block.written.to_pylist() == [7]
    assert block.rows.column("cdc$deleted_v").null_count == 1
