"""The pipes of a soak: their databases, topics and ClickHouse servers, as commands and as a settings file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.embedded.engine.directory_lock import read_serving_process
from testkit.oracles.both_ends import sink_client
from testkit.soak.traffic import Traffic
from testkit.soak.world import World

PARTITIONS = 3


@dataclass(slots=True)
class Route:
    """From a database to its copy, by one pipe or by two."""

    name: str
    traffic: Traffic
    sink: str
    """As `headrace verify` takes it."""
    url: str
    """The server of the source, without the proxy."""
    warehouse: Path | None = None
    """The directory of an embedded ClickHouse; None: the server."""
    verify_options: tuple[str, ...] = ()
    _client: Client | None = None
    _address: str = ""

    def visible(self) -> datetime | None:
        """Return when the newest heartbeat of the copy was written; None if the copy does not answer."""
        try:
            client = self.client()
            if client is None:
                return None
            rows = client.query(f"SELECT max(at) FROM {self.traffic.database}.beat FINAL").result_rows
        # The soak kills the server and resets its connections.
        except (ClickHouseError, OSError):
            self._client = None
            return None
        found = rows[0][0] if rows else None
        return found.replace(tzinfo=UTC) if found is not None and found.year > 2000 else None

    def client(self) -> Client | None:
        """Return a client of the server without the proxy; None while it does not run."""
        address = self.address()
        if address and (self._client is None or address != self._address):
            self._client, self._address = sink_client(address), address
        return self._client if address else None

    def address(self) -> str:
        """Return the address of the copy; empty while it does not run."""
        if self.warehouse is None:
            return self.sink
        holder = read_serving_process(self.warehouse)
        return f"http://127.0.0.1:{holder.port}" if holder is not None and holder.port else ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All pipes of a soak."""

    routes: tuple[Route, ...]
    commands: Mapping[str, Sequence[str]]
    """By pipe: the arguments of `headrace replicate`."""
    toml: str
    """The same as a settings file."""
    state: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def make_plan(world: World, seed: int, pause_s: float, listen: str) -> Plan:
    """MariaDB to a ClickHouse server; MySQL to an embedded one; MySQL to Kafka and from there to the embedded one."""
    directory = world.directory
    state, warehouse = directory / "state", directory / "warehouse"
    traffic = {
        "east": Traffic(world.mariadb, "east", seed, pause_s=pause_s),
        "west": Traffic(world.mysql, "west", seed, pause_s=pause_s),
        "hop": Traffic(world.mysql, "hop", seed, topic=True, pause_s=pause_s * 2),
    }
    east, west, hop = world.source_url("mariadb", "east"), world.source_url("mysql", "west"), world.source_url("mysql", "hop")
    server, embedded, kafka = world.clickhouse_url(), f"chdb:{warehouse}", world.kafka_url
    debezium = {"format": "debezium", "partitions": PARTITIONS, "schemas": True}
    flags = [word for name, value in debezium.items() for word in ("--set", f"kafka.{name}={str(value).lower()}")]
    commands = {
        "east": [east, server],
        "west": [west, embedded],
        "out": [hop, kafka, *flags],
        "in": [kafka, embedded, "--topics", "headrace.hop.*"],
    }
    toml = _toml(state, listen, {"east": "EAST", "west": "WEST", "hop": "HOP"}, kafka, embedded, debezium)
    routes = (
        Route("east", traffic["east"], world.clickhouse_url(by_wire=False), world.source_url("mariadb", "east", by_wire=False)),
        Route("west", traffic["west"], embedded, world.source_url("mysql", "west", by_wire=False), warehouse),
        Route("hop", traffic["hop"], embedded, world.source_url("mysql", "hop", by_wire=False), warehouse),
    )
    secrets = {"SOAK_EAST": east, "SOAK_WEST": west, "SOAK_HOP": hop, "SOAK_CLICKHOUSE": server}
    return Plan(routes, commands, toml, state, secrets)


def _toml(state: Path, listen: str, sources: Mapping[str, str], kafka: str, embedded: str, debezium: Mapping[str, Any]) -> str:
    quoted = {name: f'"{value}"' if isinstance(value, str) else str(value).lower() for name, value in debezium.items()}
    parts = [f'[headrace]\nstate = "{state}"\nlisten = "{listen}"\n']
    parts += [f'[sources.{name}]\nurl = "${{SOAK_{variable}}}"\n' for name, variable in sources.items()]
    parts += [f'[sources.topics]\nurl = "{kafka}"\ntopics = ["headrace.hop.*"]\n']
    parts += ['[sinks.server]\nurl = "${SOAK_CLICKHOUSE}"\n', f'[sinks.warehouse]\nurl = "{embedded}"\n']
    parts += [f'[sinks.kafka]\nurl = "{kafka}"\n' + "".join(f"{name} = {value}\n" for name, value in quoted.items())]
    pipes = (("east", "east", "server"), ("west", "west", "warehouse"), ("out", "hop", "kafka"), ("in", "topics", "warehouse"))
    parts += [f'[pipes.{name}]\nsource = "{source}"\nsink = "{sink}"\n' for name, source, sink in pipes]
    text = "\n".join(parts)
    tomllib.loads(text)
    return text
