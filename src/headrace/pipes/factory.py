"""Opens the pipe of a spec: the one place for the command line, for a file of pipes, and for tests.

Invariant: no setting is ignored. A setting that does not apply to the pipe's source or sink is an error before anything is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from headrace.errors import DefiniteError
from headrace.extras import TRANSFORMS, require_extra
from headrace.model.table_selection import Selection
from headrace.pipes.source_registry import SOURCE_CONNECTORS, source_connector
from headrace.pipes.spec import BuiltPipe, PipeSpec
from headrace.sinks.clickhouse.connector import CLICKHOUSE
from headrace.sinks.registry import find_sink_connector, redact_sink, sink_connector
from headrace.stage_report import enter_stage, report_stages
from headrace.transforms.options import read_salts

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.runtime.interface import Runtime

LOCALHOST = "127.0.0.1"
_NEAR = re.compile(r"[a-z]+://([^@/]*@)?(127\.[0-9.]+|localhost|\[::1\])([:/?]|$)")
"""Addresses of servers on this machine."""


@contextmanager
def open_pipe(spec: PipeSpec, view: ProgressView, runtime: Runtime | None = None) -> Iterator[BuiltPipe]:
    """Open the pipe of a spec and its sink. Without `runtime`, the pipe starts Spark for itself."""
    check_sections(spec)
    check_reach(spec)
    check_extras(spec)
    with ExitStack() as stack:
        with report_stages("loading compiled kernels"):
            # Commands that run no pipe do not load the kernels.
            from headrace.kernels.compile import ensure_compiled

            ensure_compiled()
            enter_stage(f"opening {redact_sink(spec.sink)}")
            built = stack.enter_context(source_connector(spec.source).open(spec, view, runtime, _host(spec)))
        yield built


def workers_import(spec: PipeSpec) -> tuple[str, ...]:
    """Return the modules that the pipe's tasks need, which workers import at their start."""
    return (*source_connector(spec.source).preload, *(sink_connector(spec.sink).preload or CLICKHOUSE.preload))


def spark_needs(spec: PipeSpec) -> dict[str, str]:
    """Return the settings that Spark must be started with for the pipe."""
    return dict(source_connector(spec.source).spark_settings(spec))


def shown_source(source: str) -> str:
    """Return a source's address without its secrets."""
    return source_connector(source).redact(source)


def _host(spec: PipeSpec) -> str:
    """Return where tasks reach this process, for sinks that print here."""
    if not sink_connector(spec.sink).prints:
        return LOCALHOST
    from headrace.spark.runtime.cluster import driver_host

    return driver_host(spec.settings.master, spec.settings.spark)


def selected(source: str, tables: Sequence[str], exclude: Sequence[str]) -> Selection:
    """Return the selected tables of a source: all of its database (of topics: all), unless some are named."""
    connector = source_connector(source)
    if connector.selects_all:
        return Selection.of_globs(tables or ["*.*"], exclude)
    return Selection.of_globs(tables, exclude, connector.database_of(source))


def check_reach(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if tasks run on other machines and an address means this one."""
    master = spec.settings.master
    sink = find_sink_connector(spec.sink)
    is_embedded = sink is not None and sink.is_embedded
    is_source = _NEAR.match(spec.source) is not None
    if master.startswith("local") or not (is_source or is_embedded or _NEAR.match(spec.sink)):
        return
    # Only a pipe on a cluster loads Spark here.
    from headrace.spark.runtime.cluster import is_remote_master

    if is_remote_master(master):
        what = "an embedded ClickHouse" if is_embedded and not is_source else "127.0.0.1"
        raise DefiniteError(
            f"tasks run on the machines of {master}, and {what} is reached on this one only",
            place=f"the {'source' if is_source else 'sink'} of pipe {spec.name}",
            hint="give an address that those machines understand, or run here: --master local[N]",
        )


def check_here(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if the pipe cannot run on this machine: an address out of reach, or a missing package, class or secret."""
    check_reach(spec)
    check_extras(spec)
    read_salts(spec.settings.transforms)
    connector = sink_connector(spec.sink)
    if connector.check_here is not None:
        connector.check_here(spec.sink, spec.chosen.section_options(connector.section))


def check_extras(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if the installation lacks an extra that the pipe needs."""
    for extra in (source_connector(spec.source).extra, sink_connector(spec.sink).extra):
        if extra is not None:
            require_extra(extra)
    if spec.settings.transforms.have_expressions:
        require_extra(TRANSFORMS)


def check_sections(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if the settings hold options for another kind of source."""
    connector = source_connector(spec.source)
    for section, why in connector.refused_sections:
        spec.chosen.check_sections((section,), why)
    for other in SOURCE_CONNECTORS:
        if other.sections != connector.sections:
            spec.chosen.check_sections(other.sections, f"this is about {other.section_subject}, and the source is {connector.label}")
