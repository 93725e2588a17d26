"""Runs all preflight checks of a server and returns all findings.

`replicate` runs the same checks and stops at the first error (see `required`).
"""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from headrace.model.cascade_mode import CascadeMode
from headrace.model.table_selection import Selection
from headrace.sources.mysql.preflight.checks import SERVER_CHECKS, check_log_rights, check_retention, check_selection
from headrace.sources.mysql.preflight.server_facts import ServerFacts
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.preflight import Finding, Level


def examine(connection: Connection[Any], address: MySQLAddress, wanted: Selection, cascades: CascadeMode) -> list[Finding]:
    """Return all findings about a server for the wanted tables, in the order in which problems should be repaired."""
    facts = ServerFacts(connection, address)
    findings = [finding for check in SERVER_CHECKS for finding in check(facts)]
    findings += check_log_rights(facts)
    if any(finding.name == "REPLICATION SLAVE" and finding.level is Level.OK for finding in findings):
        findings += check_retention(facts)
    findings += check_selection(facts, facts.tables(wanted), wanted, cascades)
    return findings
