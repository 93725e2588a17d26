"""`python -m headrace.materialize_mysql.bridged_request DIR`: runs one request of an embedded server, and ends.

The request is a line of JSON on standard input, the answer a line of JSON on standard output; both are a socket of the server (`bridge`). A
statement comes from a client over HTTP, so settings that name files or hosts of this machine are rejected.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any, Final

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.materialize_mysql.databases import DatabaseExists, Databases
from headrace.materialize_mysql.pipe_plan import SettingRejected, plan_pipe
from headrace.materialize_mysql.statement_parser import CreateMaterializedDatabase, parse_statement
from headrace.materialize_mysql.token_cursor import StatementSyntaxError
from headrace.sources.mysql.server.connection import parse_mysql_url

_OF_THIS_MACHINE: Final = ("ca", "cert", "key", "master")
_CODES: Final = (
    (StatementSyntaxError, 62, "SYNTAX_ERROR"),
    (DatabaseExists, 82, "DATABASE_ALREADY_EXISTS"),
    (SettingRejected, 115, "UNKNOWN_SETTING"),
    (TransientError, 279, "ALL_CONNECTION_TRIES_FAILED"),
)
"""ClickHouse's codes of the errors."""
_OTHER: Final = {"CREATE": (501, "CANNOT_CREATE_DATABASE")}


def run_request(directory: Path, request: dict[str, str]) -> dict[str, Any]:
    databases = Databases(f"chdb:{directory}", served=True)
    try:
        match request["run"]:
            case "statement":
                _run_statement(databases, request)
            case "resume":
                databases.resume()
            case "stop":
                databases.stop()
            case "take over":
                return {"stopped": databases.release_directory()}
    except HeadraceError as error:
        return _describe(error, request)
    return {}


def _describe(error: HeadraceError, request: dict[str, str]) -> dict[str, Any]:
    found = next(((code, name) for kind, code, name in _CODES if isinstance(error, kind)), None)
    code, name = found or _OTHER.get(request.get("verb", ""), (36, "BAD_ARGUMENTS"))
    return {"error": str(error), "code": code, "name": name}


def _run_statement(databases: Databases, request: dict[str, str]) -> None:
    verb, name = request["verb"], request["name"]
    match verb:
        case "CREATE":
            statement = parse_statement(request["text"])
            assert isinstance(statement, CreateMaterializedDatabase)
            reject_local_files(statement)
            databases.create(statement)
        case "DROP":
            databases.drop(name)
        case "DETACH":
            databases.detach(name)
        case "ATTACH":
            databases.attach(name)
        case _:
            databases.reject(verb, name)


def reject_local_files(statement: CreateMaterializedDatabase) -> None:
    """Raise for a setting that names a file or host of this machine, also if the source's address got it in another way."""
    for name, _ in statement.settings:
        if name in _OF_THIS_MACHINE:
            raise _local(name)
    address = parse_mysql_url(plan_pipe(statement).source)
    files = {"socket": address.socket}
    if address.tls is not None:
        files |= {"ca": address.tls.ca, "cert": address.tls.cert, "key": address.tls.key}
    for name, file in files.items():
        if file:
            raise _local(name)


def _local(name: str) -> SettingRejected:
    return SettingRejected(
        f"the setting {name} names a file or host of the server's machine",
        place="SETTINGS",
        hint="give the statement to `headrace sql chdb:PATH` on that machine",
    )


def main() -> int:
    # The bridge ends a request by SIGTERM: a suspended pipe must continue (`BackgroundPipe.frozen`).
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    directory = Path(sys.argv[1])
    if "--stop" in sys.argv:
        Databases(f"chdb:{directory}", served=True).stop()
        return 0
    request = json.loads(sys.stdin.readline())
    try:
        answer = run_request(directory, request)
    except Exception as error:
        # The client must get an answer; the log has the traceback.
        answer = _describe(DefiniteError(f"the statement failed: {error}", place=str(directory)), request)
        print(json.dumps(answer), flush=True)
        raise
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
