"""How a table is compared: which columns, and by which method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from headrace.model.column_types import DATE_FORMS
from headrace.model.schema import TableSchema, ZeroDates
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.transforms.transform_plan import TransformPlan


@dataclass(frozen=True)
class TableComparison:
    """How one table is compared, with the sink's schema. Picklable."""

    schema: TableSchema
    read: tuple[str, ...] = ()
    """Columns without a digest: they are read with the key and compared by value."""
    left_out: tuple[str, ...] = ()
    """Columns that cannot be compared."""
    losses: tuple[tuple[str, str], ...] = ()
    """Columns whose type in the sink loses information, and what it loses."""
    keeps_deleted: bool = False
    """Whether the sink retains deleted rows by choice."""
    source: TableSchema | None = None
    """The source's schema, if the table is transformed: then `schema` is the transformed one, and rows are compared by value."""
    keeps_key: bool = True
    """Whether both sides have the same key values, even under other column names."""
    has_filter: bool = False
    """Whether a filter of the table may exclude source rows."""

    @cached_property
    def shown(self) -> TableSchema:
        return self._with([column.name for column in self.schema.columns if column.name not in self.left_out])

    @cached_property
    def digested(self) -> TableSchema:
        return self._with([column.name for column in self.shown.columns if column.name not in self.read])

    @cached_property
    def undigested(self) -> TableSchema:
        """The table with its key and the columns that are read; all of them if nothing else identifies rows."""
        key = self.schema.row_key
        return self._with([column.name for column in self.shown.columns if not self.by_digest or column.name in (*key, *self.read)])

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.shown.columns)

    @property
    def keyed(self) -> bool:
        """Whether single rows can be queried on both sides."""
        return bool(self.schema.row_key) and self.keeps_key

    @property
    def by_digest(self) -> bool:
        """Whether there are digests of whole rows, or of the columns that have one."""
        if self.source is not None:
            return False
        keyed = bool(self.schema.row_key) and not set(self.schema.row_key) & set(self.read)
        return not self.keeps_deleted and (keyed or not self.read)

    @property
    def notes(self) -> tuple[str, ...]:
        lossy = dict(self.losses)
        found = [f"column {name} is not compared: its type in the sink does not keep {lossy[name]}" for name in self.left_out]
        found += [f"column {name} is compared without {lossy[name]}" for name in lossy if name not in self.left_out]
        plain = [name for name in self.read if name not in self.left_out and self.source is None]
        if plain and self.by_digest:
            found.append(f"read on both sides, because no digest can be made of what the sink stores: {', '.join(plain)}")
        elif plain:
            found.append(f"all columns are read on both sides, because no digest can be made of what the sink stores: {', '.join(plain)}")
        if self.source is not None:
            found.append("all columns are read on both sides, for its rows are transformed")
        if self.keeps_deleted:
            found.append("deletions are ignored by choice: rows that only the sink has are not counted")
        return tuple(found)

    def _with(self, names: Sequence[str]) -> TableSchema:
        return replace(self.schema, columns=tuple(column for column in self.schema.columns if column.name in names))


def describe(
    schema: TableSchema, sink: ClickHouseSink, zero_dates: ZeroDates = ZeroDates.HALT, plan: TransformPlan | None = None
) -> TableComparison:
    """Return how a table is compared, by the existing target. `plan`: its transform plan, if it is transformed."""
    layout, digests = sink.target_table(schema), sink.digests()
    losses, left_out = digests.losses(schema), digests.incomparable(schema)
    # The source's functions cannot compute a replaced date.
    dates = [column.name for column in schema.columns if column.form in DATE_FORMS] if zero_dates is ZeroDates.EPOCH else []
    read = tuple(name for name in dict.fromkeys((*digests.undigested(schema), *dates)) if name not in left_out)
    found = TableComparison(schema, read, left_out, tuple(losses.items()), layout.ignores_deletes)
    if plan is None:
        return found
    return replace(found, source=plan.source, keeps_key=plan.keeps_key, has_filter=bool(plan.filter))
