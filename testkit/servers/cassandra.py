"""A private Apache Cassandra: one node with its own directory and ports on 127.0.0.1.

Acknowledged writes are on disk: `kill` followed by `start` loses nothing. It replaces ScyllaDB where none is available: the same protocol
and the same cells, without ScyllaDB's CDC log.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from headrace.cql.address import CqlAddress, parse_cql_url
from headrace.demo.private_process import PrivateProcess, find_free_port
from testkit.servers.cache import class_data_options
from testkit.servers.certificates import Pair
from testkit.servers.maven_fetch import fetch_cassandra, java_program

HOST: Final = "127.0.0.1"
SUPERUSER: Final = "cassandra"
"""The default superuser: its name and its password."""
GIVEN: Final = "HEADRACE_SCYLLA"
_OPTIONS: Final = bytes.fromhex("040000000500000000")
_SUPPORTED: Final = 0x06
_ANSWER_S: Final = 5.0

_OPENED = (
    *("java.io", "java.lang", "java.lang.module", "java.lang.reflect", "java.math", "java.net", "java.nio", "java.nio.charset"),
    *("java.nio.file.spi", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.loader", "jdk.internal.math"),
    *("jdk.internal.misc", "jdk.internal.module", "jdk.internal.ref", "jdk.internal.reflect", "jdk.internal.util.jar", "sun.nio.ch"),
)
JAVA = (
    *(java_program(), "-Xms256m", "-Xmx512m", "-Xmn96m", "-Xss512k", "-XX:MaxDirectMemorySize=256m"),
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dcassandra-foreground=yes",
    # One node has no peers to wait for.
    "-Dcassandra.ring_delay_ms=0",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.superuser_setup_delay_ms=-1",
    # Data in the page cache survives a killed process: no fsync is needed.
    "-Dcassandra.skip_sync=true",
    # Otherwise it measures this with a hundred thousand rows, which takes half of the start.
    "-Dcassandra.memtable.row_overhead_size=181",
)
_LOGGING = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date %level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


class PrivateCassandra(PrivateProcess):
    """One node. With `accounts` its clients must log in, with `tls` (a certificate and its key) they must encrypt."""

    log_name = "cassandra.log"
    start_timeout_s = 240.0

    def __init__(self, directory: Path, *, accounts: bool = False, tls: Pair | None = None, **settings: Any) -> None:
        super().__init__("Cassandra", directory)
        self.accounts, self.tls, self.settings = accounts, tls, settings
        self.port, self._storage_port = find_free_port(), find_free_port()
        self.java_options: Sequence[str] | None = None

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def host(self) -> str:
        """host:port."""
        return f"{HOST}:{self.port}"

    def url(
        self, keyspace: str = "", *, scheme: str = "scylla", user: str = SUPERUSER, password: str = SUPERUSER, **settings: object
    ) -> str:
        """The server's address in the form that the `headrace` command takes; `settings` with underscores for hyphens."""
        account = f"{user}:{password}@" if self.accounts else ""
        query = "&".join(f"{name.replace('_', '-')}={value}" for name, value in settings.items())
        return f"{scheme}://{account}{self.host}/{keyspace}" + (f"?{query}" if query else "")

    def address(self, keyspace: str = "", **settings: Any) -> CqlAddress:
        """The same, parsed."""
        return parse_cql_url(self.url(keyspace, **settings))

    def _command(self) -> list[str]:
        options = _archive_options() if self.java_options is None else self.java_options
        settings, logging = self.directory / "cassandra.yaml", self.directory / "logback.xml"
        # YAML is a superset of JSON.
        settings.write_bytes(orjson.dumps({**self._settings(), **self.settings}, option=orjson.OPT_INDENT_2))
        logging.write_text(_LOGGING)
        found = {"cassandra.config": settings.as_uri(), "cassandra.storagedir": self.data_dir, "logback.configurationFile": logging}
        places = [f"-D{name}={value}" for name, value in found.items()]
        return [*JAVA, *options, *places, "-cp", _class_path(), "org.apache.cassandra.service.CassandraDaemon"]

    def _settings(self) -> dict[str, Any]:
        found = _common_settings(self.data_dir, self.port, self._storage_port)
        if self.accounts:
            found |= {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
            found |= dict.fromkeys(("roles_validity", "permissions_validity", "credentials_validity"), "0ms")
        if self.tls is not None:
            found["client_encryption_options"] = self._encryption(self.tls)
        return found

    def _encryption(self, tls: Pair) -> Mapping[str, Any]:
        both = self.directory / "server.pem"
        both.touch(0o600)
        both.write_text(tls.key.read_text() + tls.cert.read_text())
        factory = {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"}
        return {"enabled": True, "optional": False, "ssl_context_factory": factory, "keystore": str(both)}

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), _ANSWER_S) as line:
                if self.tls is not None:
                    return True
                line.sendall(_OPTIONS)
                return line.recv(9)[4:5] == bytes([_SUPPORTED])
        except OSError as error:
            self._refusal = str(error)
            return False


@dataclass(frozen=True, slots=True)
class GivenCluster:
    """An existing cluster, named by `HEADRACE_SCYLLA` (an address, or host:port)."""

    given: str

    def url(self, keyspace: str = "", **settings: object) -> str:
        whole = self.given if "://" in self.given else f"scylla://{self.given}"
        place, _, query = whole.partition("?")
        more = "&".join(filter(None, (query, *(f"{name.replace('_', '-')}={value}" for name, value in settings.items()))))
        return f"{place.rstrip('/')}/{keyspace}" + (f"?{more}" if more else "")

    def address(self, keyspace: str = "", **settings: Any) -> CqlAddress:
        return parse_cql_url(self.url(keyspace, **settings))

    @classmethod
    def from_environment(cls) -> GivenCluster | None:
        named = os.environ.get(GIVEN)
        return cls(named) if named else None


def _common_settings(data_dir: Path, port: int, storage_port: int) -> dict[str, Any]:
    return {
        "cluster_name": "headrace",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "num_tokens": 4,
        "initial_token": ",".join(str(-(1 << 63) + (part << 62) + 1) for part in range(4)),
        "auto_bootstrap": False,
        "seed_provider": [
            {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": f"{HOST}:{storage_port}"}]}
        ],
        "listen_address": HOST,
        "rpc_address": HOST,
        "storage_port": storage_port,
        "native_transport_port": port,
        "endpoint_snitch": "SimpleSnitch",
        "data_file_directories": [str(data_dir / "data")],
        "commitlog_directory": str(data_dir / "commitlog"),
        "saved_caches_directory": str(data_dir / "caches"),
        "hints_directory": str(data_dir / "hints"),
        "cdc_raw_directory": str(data_dir / "cdc"),
        # Acknowledged writes must survive a kill.
        "commitlog_sync": "batch",
        "commitlog_segment_size": "8MiB",
        "commitlog_total_space": "64MiB",
        "memtable_heap_space": "64MiB",
        "memtable_offheap_space": "64MiB",
        "key_cache_size": "0MiB",
        "counter_cache_size": "0MiB",
        "file_cache_size": "32MiB",
        "auto_snapshot": False,
        "concurrent_reads": 8,
        "concurrent_writes": 8,
        "concurrent_compactors": 1,
        "native_transport_max_frame_size": "64MiB",
        "max_mutation_size": "4MiB",
        "materialized_views_enabled": False,
        "storage_compatibility_mode": "NONE",  # (expiries beyond 2038)
        "read_request_timeout": "60s",
        "range_request_timeout": "60s",
        "write_request_timeout": "60s",
        "truncate_request_timeout": "60s",
        "request_timeout": "60s",
        "batch_size_warn_threshold": "8MiB",
        "batch_size_fail_threshold": "16MiB",
        "tombstone_warn_threshold": 100_000,
        "tombstone_failure_threshold": 1_000_000,
    }


@functools.cache
def _class_path() -> str:
    return os.pathsep.join(map(str, sorted(fetch_cassandra().glob("*.jar"))))


@functools.cache
def _archive_options() -> Sequence[str]:
    return class_data_options(fetch_cassandra().name, _run_once)


def _run_once(directory: Path, options: Sequence[str]) -> None:
    server = PrivateCassandra(directory)
    server.java_options = options
    with server:
        pass
