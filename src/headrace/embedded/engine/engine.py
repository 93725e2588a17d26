"""The chDB engine of this process, and connections to it.

A handle is a chDB connection with its own current database, settings, query parameters and temporary tables; opening one takes a tenth of a
millisecond. Only a handle without state from a statement serves other requests later (see `session`), so nothing leaks between clients.

Results leave the engine through a pipe (`INTO OUTFILE` with the pipe's writing end): the engine formats and compresses directly into it,
blocks when the client is slow, and a result of any size and format needs constant memory. Rows enter as an unnamed file (`FROM INFILE`), in
memory if they are few: the statement starts when all rows have arrived, and reports its failure. (chDB's own inserter does not: if a
constraint, too many partitions or parts, or a view fails while the table is written, it ends without an error and without the rows.)
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from headrace.embedded.engine.errors import ErrorCode, QueryFailure, engine_failure
from headrace.embedded.engine.statement_scanner import ScannedStatement
from headrace.errors import DefiniteError

_PIPE_BYTES: Final = 1 << 20
_MEMORY_BYTES: Final = 64 << 20
_CANCEL_SECONDS: Final = 0.2
_FILES_DATABASE: Final = "_headrace_files"
"""The engine creates a file system database under this name; it is dropped before the first request."""
# async_insert would delay small inserts until a flush timer; implicit_select would accept typing errors as queries.
_HANDLE_SETTINGS: Final = "implicit_select=0&async_insert=0"


@dataclass(frozen=True, slots=True)
class QueryStats:
    """What a statement read and wrote, for X-ClickHouse-Summary."""

    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0
    elapsed_ns: int = 0

    def summary(self) -> dict[str, str]:
        return {
            "read_rows": str(self.read_rows),
            "read_bytes": str(self.read_bytes),
            "written_rows": str(self.written_rows),
            "written_bytes": str(self.written_bytes),
            "total_rows_to_read": "0",
            "result_rows": str(self.result_rows),
            "result_bytes": "0",
            "elapsed_ns": str(self.elapsed_ns),
        }


class Engine:
    """chDB on a directory. Opened once per process, closed when the process ends."""

    def __init__(self, path: Path, config: Path, users: Path, scratch: Path, auxiliary_vector: bytes) -> None:
        place_after_environment(auxiliary_vector)
        # The import starts threads, which must inherit the restrictions of `sandbox.confine`.
        import chdb

        self.scratch = scratch
        self._connect = cast(Any, chdb).connect
        self._place = f"{path}?{_HANDLE_SETTINGS}"
        prepare_default_database(path)
        # The files are in the working directory, because a path could contain characters that are special in this address.
        try:
            options = f"config-file={config.name}&users_config={users.name}&default_database={_FILES_DATABASE}"
            self._anchor = self._connect(f"{self._place}&{options}")
            self._anchor.query(f"DROP DATABASE {_FILES_DATABASE}")
        except RuntimeError as error:
            raise DefiniteError(
                f"the embedded ClickHouse cannot open its directory: {error}",
                place=str(path),
                hint="the lines before this one say why; is it a chDB directory, readable and writable, with free space?",
            ) from error
        row = self._anchor.query("SELECT version(), timezone(), displayName()", "TabSeparated").bytes().decode()
        self.version, self.timezone, self.display_name = row.rstrip("\n").split("\t")

    def names(self, table: str) -> list[str]:
        return str(self._anchor.query(f"SELECT name FROM system.{table}", "TabSeparatedRaw").bytes().decode()).split()

    def connect(self) -> Handle:
        return Handle(self._connect(self._place), self)

    def cancel(self, marker: str = "") -> None:
        """Cancel the running statements that contain `marker`; they end shortly."""
        with contextlib.closing(self.connect()) as handle:
            handle.execute(f"KILL QUERY WHERE position(query, {quote_text(marker)}) > 0 ASYNC".encode())

    def close(self) -> None:
        self._anchor.close()


class Handle:
    """One chDB connection; runs one statement at a time."""

    def __init__(self, connection: Any, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine

    def close(self) -> None:
        self._connection.close()

    def use(self, database: str) -> None:
        self.execute(f"USE {quote_name(database)}".encode())

    def set(self, settings: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        """Apply settings and query parameters; `readonly` last, because it forbids further changes."""
        parts = [f"{quote_setting(f'param_{name}')} = {quote_text(value)}" for name, value in parameters.items()]
        ordered = sorted(settings.items(), key=lambda item: item[0] == "readonly")
        parts += [f"{quote_setting(name)} = {quote_text(value)}" for name, value in ordered]
        if parts:
            self.execute(f"SET {', '.join(parts)}".encode())

    def changed_settings(self) -> dict[str, str]:
        """Return the settings that do not have their defaults. This takes milliseconds: the engine lists all settings."""
        out, _ = self.execute(b"SELECT name, value FROM system.settings WHERE changed", "RowBinary")
        found, at = [], 0
        while at < len(out):
            text, at = _read_string(out, at)
            found.append(text)
        return dict(zip(found[::2], found[1::2], strict=True))

    def restore(self, values: Mapping[str, str | None]) -> None:
        """Set settings to these values; None: to the default."""
        parts = [f"{quote_setting(name)} = {'DEFAULT' if value is None else quote_text(value)}" for name, value in values.items()]
        if parts:
            self.execute(f"SET {', '.join(parts)}".encode())

    def current_database(self) -> str:
        out, _ = self.execute(b"SELECT currentDatabase()", "TabSeparatedRaw")
        return out.decode().rstrip("\n")

    def readonly_level(self) -> int:
        """Return the setting `readonly`: with 1 and 2, statements may not write; with 1, they may not change settings either."""
        return int(self.execute(b"SELECT getSetting('readonly')", "TabSeparatedRaw")[0])

    def execute(self, sql: bytes, output_format: str = "TabSeparated") -> tuple[bytes, QueryStats]:
        """Run a statement with a small result."""
        try:
            result = self._connection.query(sql, output_format)
        except RuntimeError as error:
            raise engine_failure(error) from error
        return result.bytes(), _stats(result)

    def insert(self, statement: ScannedStatement, pieces: Iterable[bytes]) -> QueryStats:
        """Insert the rows in `pieces`; if reading them fails, nothing is inserted."""
        with spooled(pieces, self._engine.scratch) as path:
            return self._insert_file(statement.head, statement.source_at, statement.format, path)

    def insert_through_query(self, statement: ScannedStatement, pieces: Iterable[bytes]) -> QueryStats:
        """Run INSERT ... SELECT FROM input(...): the rows go to a temporary table that replaces input()."""
        assert statement.input_span is not None
        start, end, structure = statement.input_span
        name = quote_name(f"_headrace_input_{uuid.uuid4().hex}").encode()
        with spooled(pieces, self._engine.scratch) as path:
            kept = b"Memory" if Path(path).stat().st_size <= _MEMORY_BYTES else b"StripeLog"
            self.execute(b"CREATE TEMPORARY TABLE %s ENGINE = %s AS SELECT * FROM null(%s)" % (name, kept, structure))
            try:
                head = b"INSERT INTO " + name
                self._insert_file(head, len(head), statement.format, path)
                _, stats = self.execute(statement.head[:start] + name + statement.head[end:])
            finally:
                self.execute(b"DROP TEMPORARY TABLE " + name)
        return stats

    def _insert_file(self, head: bytes, source_at: int, rows_format: str, path: str) -> QueryStats:
        source = f" FROM INFILE '{path}' ".encode()
        return self.execute(head[:source_at] + source + head[source_at:] + f" FORMAT {rows_format}".encode())[1]

    def output(self, statement: ScannedStatement, default_format: str, compression: str = "") -> OutputPipe:
        return OutputPipe(self._engine, self, statement, statement.format or default_format, compression)


class OutputPipe:
    """The formatted result of a running query. Read it to its end, then call `finish`."""

    def __init__(self, engine: Engine, handle: Handle, statement: ScannedStatement, output_format: str, compression: str) -> None:
        self._engine = engine
        self._reader, self._writer = os.pipe()
        _widen(self._reader)
        coding = f" COMPRESSION {quote_text(compression)}" if compression else ""
        # The path is unique while the query runs, so it also identifies the query.
        self._target = f"INTO OUTFILE '/proc/self/fd/{self._writer}'"
        into = f"\n{self._target} TRUNCATE{coding} FORMAT {output_format}"
        self._sql = statement.head + into.encode() + statement.tail
        self._handle = handle
        self._stats = QueryStats()
        self._failure: QueryFailure | None = None
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            _, self._stats = self._handle.execute(self._sql)
        except QueryFailure as failure:
            self._failure = failure
        finally:
            os.close(self._writer)

    def read(self, size: int) -> bytes:
        return os.read(self._reader, size)

    def finish(self) -> QueryStats:
        """Wait for the query's end; raise its error."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._stats

    def close(self) -> None:
        """Discard the rest of the result and cancel the query: the engine continues even when its writes fail."""
        os.close(self._reader)
        while self._thread.is_alive():
            self._engine.cancel(self._target)
            self._thread.join(_CANCEL_SECONDS)


@contextlib.contextmanager
def spooled(pieces: Iterable[bytes], scratch: Path) -> Iterator[str]:
    """Provide the pieces as an unnamed file: in memory, or on disk if they are large."""
    with contextlib.ExitStack() as files:
        file: IO[bytes] = files.enter_context(os.fdopen(os.memfd_create("rows", os.MFD_CLOEXEC), "w+b", buffering=0))
        size = 0
        for piece in pieces:
            if size <= _MEMORY_BYTES < size + len(piece):
                larger = files.enter_context(tempfile.TemporaryFile(dir=scratch, buffering=0))
                file.seek(0)
                shutil.copyfileobj(file, larger)
                file.close()
                file = larger
            size += len(piece)
            _write_all(file, piece)
        yield f"/proc/self/fd/{file.fileno()}"


def prepare_default_database(path: Path) -> None:
    """Define the database `default` as Atomic; the engine's own is also a view of the file system.

    In a directory of release 0.9, the tables of `default` are found by the UUID in the link `metadata/default`, which is kept.
    """
    metadata = path / "metadata"
    definition, link = metadata / "default.sql", metadata / "default"
    if not definition.exists():
        identity = link.readlink().name if link.is_symlink() else str(uuid.uuid4())
        metadata.mkdir(exist_ok=True, mode=0o700)
        temporary = metadata / ".default.sql"
        temporary.write_text(f"ATTACH DATABASE _ UUID {quote_text(identity)}\nENGINE = Atomic\n")
        temporary.replace(definition)
    if link.is_symlink():
        # The engine would give the same UUID to its file system database. It creates the link again when it loads the database.
        link.unlink()


def _write_all(file: IO[bytes], piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


def wait_for_directory(path: Path, deadline: float) -> bool:
    """Wait until no chDB or ClickHouse process uses the directory; False if one still does at the deadline (monotonic)."""
    while True:
        if _is_free(path / "status"):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


def _is_free(status: Path) -> bool:
    try:
        fd = os.open(status, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def quote_name(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_setting(name: str) -> str:
    """Return a setting's name for SET; raise for text that is not a name."""
    if not name.replace(".", "_").isidentifier() or not name.isascii():
        raise ErrorCode.BAD_ARGUMENTS.failure(f"{name!r} is not the name of a setting or parameter")
    return name


def _widen(fd: int) -> None:
    # The kernel refuses a larger pipe if the user has many; the default size is enough.
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except PermissionError:
        return


def _stats(result: Any) -> QueryStats:
    return QueryStats(
        read_rows=result.storage_rows_read(),
        read_bytes=result.storage_bytes_read(),
        written_rows=result.rows_written(),
        written_bytes=result.bytes_written(),
        result_rows=result.rows_read(),
        elapsed_ns=int(result.elapsed() * 1e9),
    )


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    """Read a RowBinary String: LEB128 length, then bytes."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return data[at : at + length].decode(), at + length


_kept: list[Any] = []
"""The engine and the C library use the block as long as the process runs."""


def read_auxiliary_vector() -> bytes:
    """Return the vector; empty if the system does not show it. Call it before the sandbox is closed."""
    try:
        return Path("/proc/self/auxv").read_bytes()
    except OSError:
        return b""


def place_after_environment(vector: bytes) -> None:
    """Copy the environment into a block that has the auxiliary vector behind it (page size, processor features), as the kernel does.

    ClickHouse reads the vector from `/proc/self/auxv`, which the sandbox does not allow, otherwise from the words after the environment.
    But setting a variable moves the environment to the heap, and the engine then reads arbitrary words as the vector: it crashed while it
    was loaded. So no variable may be set between this call and the loading of the engine.
    """
    if not vector:
        return
    word = ctypes.sizeof(ctypes.c_void_p)
    environment = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    count = 0
    while environment[count]:
        count += 1
    block = (ctypes.c_void_p * (count + 1 + len(vector) // word))()
    for place in range(count):
        block[place] = environment[place]
    ctypes.memmove(ctypes.byref(block, (count + 1) * word), vector, len(vector) // word * word)
    _kept.append(block)
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value = ctypes.addressof(block)


_MIB: Final = 1 << 20
# Small caches and few background threads, because the engine shares the machine with the pipeline.
_SERVER: Final = {
    "mark_cache_size": 64 * _MIB,
    "index_mark_cache_size": 16 * _MIB,
    "primary_index_cache_size": 64 * _MIB,
    "uncompressed_cache_size": 0,
    "index_uncompressed_cache_size": 0,
    "query_condition_cache_size": 16 * _MIB,
    "compiled_expression_cache_size": 32 * _MIB,
    "parquet_metadata_cache_size": 16 * _MIB,
    "iceberg_metadata_files_cache_size": 0,
    "vector_similarity_index_cache_size": 0,
    "text_index_tokens_cache_size": 16 * _MIB,
    "text_index_header_cache_size": 16 * _MIB,
    "text_index_postings_cache_size": 16 * _MIB,
    "unique_key_index_cache_size_bytes": 16 * _MIB,
    "max_thread_pool_free_size": 32,
}


def render_config() -> str:
    """Return the text of the configuration file."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    values = {**_SERVER, "max_server_memory_usage": memory // 2}
    lines = [f"    <{name}>{value}</{name}>" for name, value in values.items()]
    return "\n".join(["<clickhouse>", *lines, "</clickhouse>"]) + "\n"
