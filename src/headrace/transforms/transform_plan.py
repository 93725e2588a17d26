"""The transform plan of one table: its schema in the sink, how each column is made, and checks of the names in its options.

Invariant: a plan is a pure function of the table's schema and the options. Rows stay distinct: a key column is not dropped, masked or
computed; it may be renamed, or hashed by a hash that keeps values distinct. Naming a missing table or column is an error: a misspelt name
would leave a value visible that should be hidden.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Index, TableName, TableSchema
from headrace.transforms import duckdb_engine
from headrace.transforms.column_types import column_of, engine_form
from headrace.transforms.duckdb_engine import nearest
from headrace.transforms.expressions import is_never_null, parse
from headrace.transforms.mask_and_hash import hashed_column, masked_column
from headrace.transforms.options import Hash, Mask, TransformOptions, Transforms, read_hash, read_mask

Masking = Mask | Hash


@dataclass(frozen=True, slots=True)
class OutputColumn:
    column: Column
    source: str
    """The source column that it carries or replaces; empty for a computed column with a new name."""
    masking: Masking | None = None
    expression: str = ""
    inputs: tuple[str, ...] = ()
    """The source columns that its value depends on."""

    @property
    def is_plain(self) -> bool:
        """Whether it holds the source's values."""
        return self.masking is None and not self.expression

    @property
    def how(self) -> tuple[object, ...]:
        """Identifies how the column is made; two equal values give equal columns."""
        return self.masking, self.expression, self.inputs if self.expression else ()


@dataclass(frozen=True, slots=True)
class TransformPlan:
    source: TableSchema
    schema: TableSchema
    """The table in the sink."""
    outputs: tuple[OutputColumn, ...]
    filter: str = ""
    filter_inputs: tuple[str, ...] = ()
    salt: str = ""
    """The location of the secret of hashes."""

    @property
    def is_plain(self) -> bool:
        """Return whether blocks stay unchanged."""
        return self.schema is self.source and not self.filter

    @property
    def keeps_key(self) -> bool:
        """Whether the row key is the same in source and sink, apart from column names."""
        mine = {output.column.name: output for output in self.outputs}
        return all(mine[name].is_plain for name in self.schema.row_key)

    def inputs_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the source columns that these sink columns depend on."""
        mine = {output.column.name: output for output in self.outputs}
        return tuple(dict.fromkeys(one for name in names for one in mine[name].inputs))

    def moving(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return the source columns whose change moves a row, given the sink columns whose change does. Empty: every change."""
        return tuple(dict.fromkeys((*self.inputs_of(keys), *self.filter_inputs))) if keys else ()


def identity_plan(schema: TableSchema) -> TransformPlan:
    return TransformPlan(schema, schema, tuple(OutputColumn(column, column.name, inputs=(column.name,)) for column in schema.columns))


@functools.lru_cache(maxsize=1024)
def plan_transform(options: TransformOptions, schema: TableSchema) -> TransformPlan:
    """Return the plan of a table; raise `DefiniteError` if the options do not fit it."""
    if options.is_empty:
        return identity_plan(schema)
    return _PlanBuilder(options, schema).build()


def unmatched_columns(options: TransformOptions, schema: TableSchema) -> list[tuple[str, str]]:
    """Return the options that name missing columns: option and column."""
    names = {column.name for column in schema.columns}
    maps = {"rename": options.rename, "mask": options.mask, "hash": options.hash}
    found = [(field, name) for field, pairs in maps.items() for name, _ in pairs if name not in names]
    return found + [("drop", glob) for glob in options.drop if not fnmatch.filter(names, glob)]


class _PlanBuilder:
    def __init__(self, options: TransformOptions, schema: TableSchema) -> None:
        self._options, self._schema = options, schema
        self._renamed, self._masks, self._hashes = dict(options.rename), dict(options.mask), dict(options.hash)
        self._computed = dict(options.computed)
        self._check_once()

    def build(self) -> TransformPlan:
        options, schema = self._options, self._schema
        computed = self._computed_outputs()
        outputs: list[OutputColumn] = []
        for column in schema.columns:
            if column.name in computed:
                self._check_key(column.name, "computed", "computed")
                outputs.append(computed.pop(column.name))
            elif not any(fnmatch.fnmatchcase(column.name, glob) for glob in options.drop):
                outputs.append(self._output(column))
            else:
                self._check_key(column.name, "drop", "left out")
        outputs += computed.values()
        self._check_names(outputs)
        filter_inputs = self._filter_inputs() if options.filter else ()
        salt = options.hash_salt if options.hash else ""
        return TransformPlan(schema, self._sink_schema(outputs), tuple(outputs), options.filter, filter_inputs, salt)

    def _check_once(self) -> None:
        """Raise if two transforms apply to one column."""
        for name in self._masks.keys() & self._hashes.keys():
            raise self._error("mask", f"column {name} is both masked and hashed", "choose one of them")
        for name in self._computed.keys() & (self._masks.keys() | self._hashes.keys() | self._renamed.keys()):
            raise self._error(
                "computed", f"column {name} is computed, and also masked, hashed or renamed", "put all of it into the expression"
            )

    def _output(self, column: Column) -> OutputColumn:
        name = self._renamed.get(column.name, column.name)
        if column.name in self._masks:
            self._check_key(column.name, "mask", "masked")
            mask = read_mask(self._masks[column.name], self._location("mask"))
            with self._with_location(f"mask.{column.name}"):
                made = masked_column(column, mask)
            return OutputColumn(replace(made, name=name), column.name, mask, inputs=(column.name,))
        if column.name in self._hashes:
            how = read_hash(self._hashes[column.name], self._location("hash"))
            if how is Hash.NUMBER:
                self._check_key(column.name, "hash", "hashed to a number, which two values may share")
            with self._with_location(f"hash.{column.name}"):
                made = hashed_column(column, how)
            return OutputColumn(replace(made, name=name), column.name, how, inputs=(column.name,))
        return OutputColumn(column if name == column.name else replace(column, name=name), column.name, inputs=(column.name,))

    def _computed_outputs(self) -> dict[str, OutputColumn]:
        if not self._computed:
            return {}
        inputs = {name: self._inputs(f"computed.{name}", text) for name, text in self._computed.items()}
        needed = tuple(dict.fromkeys(one for names in inputs.values() for one in names))
        required = frozenset(column.name.lower() for column in self._schema.columns if not column.nullable)
        names = {column.name for column in self._schema.columns}
        made = {}
        for name, text in self._computed.items():
            [(kind, values)] = self._types(f"computed.{name}", [text], inputs[name])
            with self._with_location(f"computed.{name}"):
                column = column_of(name, kind, values, nullable=not is_never_null(text, required))
            made[name] = OutputColumn(column, name if name in names else "", None, text, inputs[name])
        self._types("computed", list(self._computed.values()), needed)
        return made

    def _filter_inputs(self) -> tuple[str, ...]:
        inputs = self._inputs("filter", self._options.filter)
        [(kind, _)] = self._types("filter", [self._options.filter], inputs)
        if kind != "BOOLEAN":
            raise self._error("filter", f"the filter is not true or false, but {kind}", "compare something: total > 100")
        return inputs

    def _inputs(self, field: str, text: str) -> tuple[str, ...]:
        """The table's columns that an expression names."""
        with self._with_location(field):
            names = parse(text).names
        return tuple(dict.fromkeys(self._resolved(field, name) for name in names))

    def _resolved(self, field: str, name: str) -> str:
        names = [column.name for column in self._schema.columns]
        if name in names:
            return name
        same = [one for one in names if one.lower() == name.lower()]
        if len(same) == 1:
            return same[0]
        near = duckdb_engine.nearest(name, names)
        hint = f"did you mean {near}? (a text is in single quotes)" if near else f"its columns: {', '.join(names)}"
        raise self._error(field, f"{field} names {name}, and {self._schema.name} has no such column", hint)

    def _types(self, field: str, texts: Sequence[str], inputs: Sequence[str]) -> list[tuple[str, pa.DataType]]:
        folded: dict[str, str] = {}
        for name in inputs:
            other = folded.setdefault(name.lower(), name)
            if other != name:
                raise self._error(field, f"columns {other} and {name} differ in case only", "expressions cannot distinguish them")
        with self._with_location(field):
            fields = [pa.field(name, engine_form(self._schema.column(name))[0]) for name in inputs]
        try:
            return duckdb_engine.types_of(texts, pa.schema(fields or [NO_COLUMN]))
        except duckdb_engine.EvaluationError as error:
            reason = f"{' and '.join(texts)}: {error}"
            raise self._error(field, reason, "correct the expression; types are set by CAST(x AS type)") from error

    def _sink_schema(self, outputs: Sequence[OutputColumn]) -> TableSchema:
        """Return the sink's table, with the keys whose columns still keep values distinct."""
        new_names = {output.source: output.column.name for output in outputs if output.source}
        exact = {output.source for output in outputs if output.is_plain or output.masking in (Hash.SHA256, Hash.MD5)}

        def renamed(names: Iterable[str]) -> tuple[str, ...]:
            return tuple(new_names[name] for name in names)

        def index(one: Index) -> Index:
            return replace(one, columns=renamed(one.columns), unique=one.unique and exact.issuperset(one.columns))

        schema = self._schema
        return replace(
            schema,
            columns=tuple(output.column for output in outputs),
            primary_key=renamed(schema.primary_key),
            indexes=tuple(index(one) for one in schema.indexes if new_names.keys() >= set(one.columns)),
        )

    def _check_names(self, outputs: Sequence[OutputColumn]) -> None:
        if not outputs:
            raise self._error("drop", f"no column of {self._schema.name} is left", "leave the table out as a whole")
        seen: dict[str, OutputColumn] = {}
        for output in outputs:
            name = output.column.name
            if not name:
                raise self._error("rename", "a column's name is empty", "give it a name")
            if seen.setdefault(name, output) is not output:
                field = "computed" if output.expression else "rename"
                raise self._error(field, f"two columns of {self._schema.name} would be called {name}", "choose other names")

    def _check_key(self, name: str, field: str, what: str) -> None:
        if name in self._schema.row_key:
            raise DefiniteError(
                f"column {name} of {self._schema.name} is part of the key that tells its rows apart and cannot be {what}",
                place=f"{self._location(field)}, column {name}",
                hint='hash it instead: hash = { NAME = "sha256" } keeps values apart; or choose other columns',
            )

    @contextmanager
    def _with_location(self, field: str) -> Iterator[None]:
        """Add the location of the option to errors raised inside."""
        try:
            yield
        except DefiniteError as error:
            raise self._error(field, error.message, error.hint) from error

    def _location(self, field: str) -> str:
        return error_location(self._schema.name, field)

    def _error(self, field: str, message: str, hint: str) -> DefiniteError:
        return DefiniteError(message, place=self._location(field), hint=hint)


def error_location(table: TableName, field: str) -> str:
    """Return the location of a table's option, for messages."""
    return f"table {table}, transforms: {field}"


NO_COLUMN: Final = pa.field("no column", pa.int8())
"""A placeholder column for rows when no column is needed."""


@dataclass(frozen=True, slots=True)
class NameConflict:
    """An option that matches no table or no column."""

    message: str
    place: str
    hint: str
    is_sure: bool
    """Whether it names one table or column, so that it cannot match later ones."""

    def error(self) -> DefiniteError:
        return DefiniteError(self.message, place=self.place, hint=self.hint)


def find_name_conflicts(transforms: Transforms, schemas: Iterable[TableSchema]) -> list[NameConflict]:
    """Return the options that match no table, or no column of their tables."""
    known, found = list(schemas), []
    for table, own in transforms.tables:
        mine = [schema for schema in known if fnmatch.fnmatchcase(str(schema.name), table)]
        if not mine:
            near = nearest(table, [str(schema.name) for schema in known])
            hint = f"did you mean {near}?" if near else "check the name, and which tables are chosen"
            found.append(NameConflict(f"no chosen table matches {table}", f'transforms."{table}"', hint, not glob.has_magic(table)))
            continue
        options = TransformOptions(**dict(own))
        lacking = [set(unmatched_columns(options, schema)) for schema in mine]
        columns = {column.name for schema in mine for column in schema.columns}
        for field, name in sorted(set.intersection(*lacking)):
            near = nearest(name, columns)
            hint = f"did you mean {near}?" if near else f"its columns: {', '.join(sorted(columns))}"
            what = f"{mine[0].name} has" if len(mine) == 1 else f"the tables of {table} have"
            place = f'transforms."{table}".{field}'
            found.append(NameConflict(f"{field} names {name}, and {what} no such column", place, hint, not glob.has_magic(name)))
    return found


def check_new_table(transforms: Transforms, schema: TableSchema) -> None:
    """Raise `DefiniteError` if options for exactly this table name columns that it does not have."""
    own = Transforms(tuple((table, fields) for table, fields in transforms.tables if table == str(schema.name)))
    sure = [one for one in find_name_conflicts(own, [schema]) if one.is_sure]
    if sure:
        raise sure[0].error()


def check_snapshot_replay(options: TransformOptions, before: TableSchema, now: TableSchema) -> None:
    """Raise `DefiniteError` if a hidden column disappeared and an unmentioned one is new: it may be the same column, renamed."""
    known = {column.name for column in before.columns}
    gone = [column.name for column in before.columns if _is_hidden(options, column.name) and column.name not in _names(now)]
    named = {name for name, _ in options.rename}
    came = [name for name in _names(now) if name not in known | named and not _is_hidden(options, name)]
    if gone and came:
        old, new = ", ".join(gone), ", ".join(came)
        raise DefiniteError(
            f"table {now.name} is to be read again, and is another one: {old}, which its transforms hide, is gone, and {new} came; if that "
            "is the same under another name, it would be shown",
            place=error_location(now.name, f"column {gone[0]}"),
            hint=f'name {came[0]} in the transforms as {gone[0]} was; if it may be shown, say so: rename = {{ {came[0]} = "{came[0]}" }}',
        )


def _is_hidden(options: TransformOptions, name: str) -> bool:
    treated = {one for one, _ in (*options.mask, *options.hash, *options.computed)}
    return name in treated or any(fnmatch.fnmatchcase(name, one) for one in options.drop)


def _names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]
