"""Producers, which are sinks that users write, and the sink that calls them.

A producer is an append-only sink. By default it receives the rows of a snapshot first, then every later change, table by table in the order
of the log. After a crash it receives the last batch again, cut into the same blocks with the same versions. A producer that names its
output by `block_name` therefore writes nothing twice.

The sink finds the class by its name, creates instances, and reports their failures. Invariant: tasks get the name of the class and its
settings, never an instance. After a `TransientError` of a producer the pipe retries; any other exception of it halts the pipe with an error
that names class and table.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import secrets
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, unquote

from headrace.errors import DefiniteError, HeadraceError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import AppendOnlySink, BatchCommit, TableRequirements
from headrace.sinks.producer_address import CLASS, find_entry_point
from headrace.sinks.schema_changes import LedgerEntry


class Producer:
    """Subclass it and define `write`. Its settings are the constructor's arguments: `def __init__(self, folder: str, by: str = "day")`.

    The driver has one instance (`prepare`, `schema_changed`, `committed`), and each task has its own (`open`, `write`, `close`). Instances
    share only their settings. After a `TransientError` the pipe retries; any other exception halts it.
    """

    ordered: ClassVar[bool] = True
    """The blocks of a table come in the order of the log, from one task at a time, and a replay is cut into the same blocks. If false,
    several tasks write the changes of a table, which is faster."""
    before_images: ClassVar[bool] = True
    """Every update comes with its before image. If false, only updates that change the row's key do."""

    # -- in the driver

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Prepare for the changes of tables: at every start, and for a table that is new or was altered. Repeatable."""
        del schemas

    def schema_changed(self, change: LedgerEntry) -> None:
        """A statement changed or emptied a table. All changes before it were written, none after it. A crash may repeat the call."""
        del change

    def restarted(self, schema: TableSchema, since: int) -> None:
        """The snapshot of a table starts over. Rows of the failed attempt, which have versions from `since` on, may be deleted."""
        del schema, since

    def committed(self, written: BatchCommit) -> None:
        """All blocks of a batch, or of a part of a snapshot, were written. Until this returns, the batch may be replayed."""
        del written

    # -- in a task

    def open(self) -> None:
        """Before the first block."""

    def write(self, block: ChangeBlock) -> None:
        """Write a block durably. Once this returns and the batch is committed, the block is not sent again."""
        raise NotImplementedError

    def close(self) -> None:
        """After the last block, also when something went wrong."""


def block_name(block: ChangeBlock) -> str:
    """Return a name for a block: the same at each replay, unique within the table, and sorted in the order of the log."""
    first = block.order[0].as_py() if block.order is not None and block.rows else 0
    return f"{block.version[0].as_py():020d}-{first:012d}"


log = logging.getLogger("headrace")

PATH: Final = "path"
"""The setting that an address gives between the scheme and the question mark."""


@dataclass(frozen=True, slots=True)
class ProducerClass:
    """The location of a class, and its settings. Picklable."""

    module: str
    name: str
    settings: str = field(default="{}", repr=False)
    """By name, as JSON."""
    folder: str = ""
    """A further directory to import modules from: where the pipe was started."""
    pipe: str = ""
    """Distinguishes the pipes of one process."""

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    def load(self) -> type[Producer]:
        """The class."""
        if self.folder and self.folder not in sys.path:
            sys.path.append(self.folder)
        try:
            found: Any = importlib.import_module(self.module)
        except ImportError as error:
            hint = "install the package, or start headrace in the folder where the module is (on a cluster it must be on every machine)"
            raise DefiniteError(f"the module {self.module!r} cannot be imported: {error}", place=str(self), hint=hint) from error
        except Exception as error:
            raise DefiniteError(f"the module {self.module!r} fails when it is imported: {_error_text(error)}", place=str(self)) from error
        for part in self.name.split("."):
            found = getattr(found, part, None)
        if found is None:
            known = [name for name, one in vars(sys.modules[self.module]).items() if _is_producer(one)]
            hint = f"it has: {', '.join(known)}" if known else "write class NAME(headrace.Producer) in it"
            raise DefiniteError(f"the module {self.module} has no {self.name!r}", place=str(self), hint=hint)
        if not _is_producer(found):
            raise DefiniteError(f"{self} is not a producer", place=str(self), hint=f"write class {self.name}(headrace.Producer)")
        checked: type[Producer] = found
        self._check(checked)
        return checked

    def make(self) -> Producer:
        """An instance, with the settings that were chosen."""
        kind = self.load()
        with _own_failures(self, "cannot be made"):
            return kind(**json.loads(self.settings))

    def _check(self, kind: type[Producer]) -> None:
        if kind.write is Producer.write:
            raise DefiniteError(f"{self} has no method write", place=str(self), hint="write def write(self, block) in it")
        for name in ("prepare", "schema_changed", "restarted", "committed", "open", "write", "close"):
            wanted, there = inspect.signature(getattr(Producer, name)), inspect.signature(getattr(kind, name))
            try:
                there.bind(*wanted.parameters)
            except TypeError as error:
                hint = f"write def {name}{wanted}"
                raise DefiniteError(f"the method {name} of {self} cannot be called: {error}", place=str(self), hint=hint) from error
        made = inspect.signature(kind)
        try:
            made.bind(**json.loads(self.settings))
        except TypeError as error:
            hint = f"it takes {', '.join(made.parameters) or 'none'}"
            raise DefiniteError(f"{self} does not take these settings: {error}", place=str(self), hint=hint) from error


@dataclass(frozen=True, slots=True)
class ProducerSink(AppendOnlySink):
    """An append-only sink that calls a producer."""

    producer: ProducerClass

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        wanted = tuple(schemas)
        with _own_failures(self.producer, "failed to prepare", *wanted):
            self._mine.prepare(wanted)

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        kind = self.producer.load()
        return {
            schema.name: TableRequirements(
                () if kind.before_images else schema.row_key, ordered=kind.ordered, exact=True, keeps=True, transactions=True
            )
            for schema in schemas
        }

    def snapshot_restarted(self, schema: TableSchema, since: int) -> None:
        with _own_failures(self.producer, "failed when a snapshot started over", schema):
            self._mine.restarted(schema, since)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        for entry in entries:
            with _own_failures(self.producer, f"failed at a schema change of {entry.source_table}"):
                self._mine.schema_changed(entry)

    def commit_batch(self, batch: BatchCommit) -> None:
        with _own_failures(self.producer, f"failed to commit at {batch.position}"):
            self._mine.committed(batch)

    def writer(self) -> ProducerWriter:
        return ProducerWriter(self.producer)

    @property
    def _mine(self) -> Producer:
        """The instance of the driver."""
        if self.producer not in _drivers:
            _drivers[self.producer] = self.producer.make()
        return _drivers[self.producer]


_drivers: dict[ProducerClass, Producer] = {}
"""The driver's instances, one per open sink of this process."""


class ProducerWriter:
    """Belongs to one task."""

    def __init__(self, producer: ProducerClass) -> None:
        self._class, self._opened, self._failed = producer, False, False
        self._mine = producer.make()

    def write(self, block: ChangeBlock) -> None:
        self._failed = True
        with _own_failures(self._class, "failed to write", block.schema, at=str(block.version[0].as_py()) if block.rows else ""):
            if not self._opened:
                self._mine.open()
                self._opened = True
            self._mine.write(block)
        self._failed = False

    def close(self) -> None:
        if not self._opened:
            return
        try:
            with _own_failures(self._class, "failed to close"):
                self._mine.close()
        except HeadraceError as error:
            if not self._failed:
                raise
            # The pipe reports the first failure.
            log.warning("%s", error.message)


@contextmanager
def open_producer(address: str, settings: Mapping[str, Any]) -> Iterator[tuple[ProducerSink, str]]:
    """Yield the sink of an address, and the name by which a state knows it, which contains no setting."""
    found = parse_producer(address, settings)
    sink = ProducerSink(found)
    # Report a faulty class before anything starts.
    found.load()
    try:
        yield sink, address.partition("?")[0]
    finally:
        _drivers.pop(found, None)


def parse_producer(address: str, settings: Mapping[str, Any]) -> ProducerClass:
    """`class:MODULE:CLASS?SETTING=VALUE`, or `SCHEME:PATH?SETTING=VALUE` of an entry point; settings of a file go over those."""
    bare, _, query = address.partition("?")
    given: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    if address.startswith(CLASS):
        module, _, name = bare.removeprefix(CLASS).partition(":")
    else:
        point = find_entry_point(address)
        assert point is not None
        module, name = point.module, point.attr
        path = unquote(bare.partition(":")[2])
        given |= {PATH: path} if path else {}
    if not module or not name:
        hint = 'write class = "my_package.sinks:MySink", or class:my_package.sinks:MySink'
        raise DefiniteError(f"{bare!r} names no class", place=bare, hint=hint)
    return ProducerClass(module, name, json.dumps({**given, **settings}), str(Path.cwd()), secrets.token_hex(4))


def _is_producer(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Producer) and found is not Producer


@contextmanager
def _own_failures(producer: ProducerClass, what: str, *schemas: TableSchema, at: str = "") -> Iterator[None]:
    """Turn an exception of a producer into a `DefiniteError` that names the producer."""
    tables = ", ".join(str(schema.name) for schema in schemas[:3]) + (", …" if len(schemas) > 3 else "")
    place = ", ".join(part for part in (str(producer), f"table {tables}" if tables else "", f"version {at}" if at else "") if part)
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        hint = "this is an error in the producer; what it raises as headrace.errors.TransientError is tried again"
        raised = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{place}, {Path(raised.filename).name} line {raised.lineno}"
        raise DefiniteError(f"{producer} {what}: {_error_text(error)}", place=place, hint=hint) from error


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
