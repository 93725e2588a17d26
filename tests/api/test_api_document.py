"""The examples of docs/api.md for plain Python work on both servers. (test_api_spark runs its Spark examples.)"""

from __future__ import annotations

from headrace.demo.private_server import PrivateServer
from testkit.documents.documents import DOCS, run_examples
from testkit.servers.accounts import Account


def test_the_document_s_examples(server: PrivateServer, replica_account: Account, database: str) -> None:
    text = (DOCS / "api.md").read_text().partition("\n## Spark\n")[0]
    real = {
        "shop": database,
        "reader": replica_account.user,
        "secret": replica_account.password,
        "db.example.com:3306": f"127.0.0.1:{server.port}",
    }
    with server.root_connection() as connection:
        assert run_examples("docs/api.md", text, connection, real, {}) == 5
