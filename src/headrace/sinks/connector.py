"""The description of a sink connector: what the rest of the code needs to know of a kind of sink before one is opened.

Each connector is defined in `connector.py` of its sink's folder and listed in `sinks.registry`. The description is light: it imports the
sink's kernels, drivers and servers only when a sink is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.errors import DefiniteError
from headrace.extras import Extra
from headrace.transforms.options import Transforms

if TYPE_CHECKING:
    from headrace.sinks.base import Sink
    from headrace.sinks.cdc_log_sink import LogSink
    from headrace.sinks.target_claims import ClaimStore

S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class NamedSink(Generic[S_co]):
    """An open sink and the name by which a state directory knows it."""

    sink: S_co
    name: str
    is_lost: Callable[[], bool] = lambda: False
    """Whether the sink's embedded server has exited (another one has another port)."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a pipe gives to a connector to open its sink."""

    address: str
    options: Any
    """The settings of the connector's section; None if it has none."""
    state: Path
    """The pipe's directory."""
    host: str
    """Where tasks reach this process."""
    row_images: bool = False
    """CDC logs: write whole rows from postimages instead of cells."""
    merges_rows: bool | None = None
    """CDC logs: merge cells into rows when they are written, not at each query; None: in new tables, and existing ones stay as they are."""
    transforms: Transforms = field(default_factory=Transforms)
    """CDC logs: transforms of merged rows."""


@dataclass(frozen=True, slots=True)
class SinkConnector:
    """One kind of sink."""

    name: str
    label: str
    """The name in messages to users."""
    form: str
    """How an address is written, for hints."""
    schemes: Sequence[str]
    """What addresses start with."""
    redact: Callable[[str], str]
    """Return an address without its secrets, which is also the name of the sink in a state directory."""
    is_same: Callable[[str, str], bool]
    """Return whether two names of such sinks mean the same targets, as far as the names tell."""
    matches: Callable[[str], bool] | None = None
    """Return whether an address is of this kind; None: it starts with one of the schemes."""
    section: str = ""
    """The section of a settings file with the sink's options."""
    section_subject: str = ""
    """What the section is about, for the error when the sink is another one."""
    options: type | None = None
    """The dataclass of the section; each field is a key. None: there is no section, or its keys are not known or not of one class."""
    changeable: frozenset[str] | None = None
    """The keys of the section that may change when a pipe restarts; None: all."""
    options_page: str = ""
    """The page of the documentation that lists the section."""
    address_options: type | None = None
    """The dataclass of options that are part of an address: keys of `[sinks.NAME]` in headrace.toml."""
    check_address: Callable[[str], object] = lambda _: None
    """Raise `DefiniteError` if an address is malformed. Sends no request."""
    check_here: Callable[[str, Any], object] | None = None
    """Raise `DefiniteError` if a sink with these options cannot be opened on this machine."""
    servers: Callable[[str], frozenset[object]] = lambda _: frozenset()
    """Return the servers of an address: two sinks that share one are the same system."""
    probe: Callable[[str], str] | None = None
    """Return the version of the server, or raise; None: a probe is not possible."""
    preload: tuple[str, ...] = ()
    """Modules that tasks need."""
    extra: Extra | None = None
    """The optional part of the installation that such a sink needs."""
    content: str = "none"
    """What a sink without tables holds, for messages to users."""
    new_target: str = "another target"
    """How users choose another target in such a sink, for hints."""
    has_table_store: bool = False
    """Whether sinks have a `TableStore`."""
    merges_cells: bool = False
    """Whether cells of CDC logs are merged into rows, which can be transformed."""
    is_topics: bool = False
    """Whether targets are topics."""
    is_embedded: bool = False
    """Whether the address is a directory of this machine, with a server that Headrace starts."""
    prints: bool = False
    """Whether the sink writes to the standard output of this process."""
    secret_query: bool = False
    """Whether everything after the question mark of an address may be secret."""
    inspect_hint: str = ""
    """How users look at the content of a sink without tables."""
    open: Callable[[OpenRequest], AbstractContextManager[NamedSink[Sink]]] | None = None
    """Open a sink for change blocks; None: it takes CDC logs only."""
    open_log: Callable[[OpenRequest], AbstractContextManager[NamedSink[LogSink]]] | None = None
    """Open a sink for CDC logs; None: it takes change blocks only."""
    open_claims: Callable[[str], AbstractContextManager[tuple[ClaimStore, str]]] | None = None
    """Open the claims of all pipes on targets, with the address without secrets; None: the sink records none."""

    def is_address(self, address: str) -> bool:
        """Return whether an address is of this kind."""
        return address.startswith(tuple(self.schemes)) if self.matches is None else self.matches(address)

    def require_tables(self, address: str) -> None:
        """Raise `DefiniteError` if the sink has no table store."""
        if not self.has_table_store:
            hint = "give clickhouse://user:password@host:port/db or chdb:PATH"
            raise DefiniteError(
                f"this needs a sink that holds tables, and {self.label} holds {self.content}",
                place=self.redact(address),
                hint=f"{hint}; {self.inspect_hint}" if self.inspect_hint else hint,
            )
