"""Evaluation of a transform plan over rows: the filter first, then computed, hashed and masked columns of the rows that pass.

Invariant: DuckDB receives only the columns that an expression names; all others pass unchanged. An expression that fails at a row halts
the pipe, and the error names table, expression and row. No row is dropped or set to NULL because of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.text_values import text_functions
from headrace.model.version import row_place, unpack_version
from headrace.transforms import duckdb_engine
from headrace.transforms.column_types import engine_form, from_engine
from headrace.transforms.mask_and_hash import hash_expression, hash_input, hashed, masked, salt_for
from headrace.transforms.options import Hash, Mask, Salts
from headrace.transforms.transform_plan import NO_COLUMN, OutputColumn, TransformPlan, error_location

_TRY: Final = "correct the row in the source, or let the expression give NULL for such values: TRY_CAST(x AS type), TRY(expression)"


@dataclass(frozen=True, slots=True)
class PlanEvaluator:
    """Evaluates one table's plan."""

    plan: TransformPlan
    salts: Salts

    def passing(self, block: ChangeBlock) -> npt.NDArray[np.bool_]:
        """Return for which images the filter is true."""
        plan = self.plan
        text = f"({plan.filter}\n) IS TRUE"
        [found] = self._evaluate([text], self._columns(block.images, plan.filter_inputs), (), block, ["filter"])
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)

    def images(self, block: ChangeBlock) -> pa.RecordBatch:
        """Return the images with the sink's columns."""
        engaged = [output for output in self.plan.outputs if output.expression or isinstance(output.masking, Hash)]
        made = dict(zip([output.column.name for output in engaged], self._engaged(block, engaged), strict=True)) if engaged else {}
        arrays = [made[one.column.name] if one.column.name in made else self._plain(block, one) for one in self.plan.outputs]
        for output, array in zip(self.plan.outputs, arrays, strict=True):
            if output.expression and not output.column.nullable and array.null_count:
                raise self._failed(block, output, int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))), "it is NULL", "")
        return pa.RecordBatch.from_arrays(arrays, schema=self.plan.schema.arrow_schema)

    def _plain(self, block: ChangeBlock, output: OutputColumn) -> Any:
        array = block.images.column(output.source)
        if isinstance(output.masking, Mask):
            return masked(self.plan.source.column(output.source), output.masking, array)
        return array

    def _engaged(self, block: ChangeBlock, outputs: Sequence[OutputColumn]) -> list[Any]:
        """Return the computed and hashed columns, in one query."""
        inputs = tuple(dict.fromkeys(name for output in outputs if output.expression for name in output.inputs))
        columns = self._columns(block.images, inputs)
        salt = self.salts.of(self.plan.salt)
        texts: list[str] = []
        parameters: list[str | bytes] = []
        for place, output in enumerate(outputs):
            if output.expression:
                texts.append(output.expression)
                continue
            source = self.plan.source.column(output.source)
            name = f"hashed {place} {source.name}"
            columns = columns.append_column(name, [hash_input(source, block.images.column(source.name))])
            if salt:
                parameters.append(salt_for(source, salt))
            assert isinstance(output.masking, Hash)
            quoted = '"' + name.replace('"', '""') + '"'
            texts.append(hash_expression(output.masking, quoted, len(parameters) if salt else None))
        names = [f"computed.{output.column.name}" if output.expression else f"hash.{output.source}" for output in outputs]
        found = self._evaluate(texts, columns, parameters, block, names)
        return [
            hashed(output.masking, array) if isinstance(output.masking, Hash) else from_engine(output.column, array)
            for output, array in zip(outputs, found, strict=True)
        ]

    def _columns(self, images: pa.RecordBatch, names: Sequence[str]) -> pa.Table:
        if not names:
            return pa.table({NO_COLUMN.name: pa.nulls(images.num_rows, pa.int8())})
        return pa.table({name: engine_form(self.plan.source.column(name))[1](images.column(name)) for name in names})

    def _evaluate(
        self, texts: Sequence[str], columns: pa.Table, parameters: Sequence[str | bytes], block: ChangeBlock, names: Sequence[str]
    ) -> list[Any]:
        try:
            return duckdb_engine.evaluate(texts, columns, parameters)
        except duckdb_engine.EvaluationError as error:
            raise self._first_failing_row(texts, columns, block, names) from error

    def _first_failing_row(self, texts: Sequence[str], columns: pa.Table, block: ChangeBlock, names: Sequence[str]) -> DefiniteError:
        """Return the error of the first row at which an expression fails, found by bisection."""
        for text, name in zip(texts, names, strict=True):
            reason = "" if name.startswith("hash.") else _failure(text, columns)
            if not reason:
                continue
            start, count = 0, columns.num_rows
            while count > 1:
                half = count // 2
                if _failure(text, columns.slice(start, half)):
                    count = half
                else:
                    start, count = start + half, count - half
            reason = _failure(text, columns.slice(start, count)) or reason
            output = next((one for one in self.plan.outputs if f"computed.{one.column.name}" == name), None)
            return self._failed(block, output, start, reason, text if output is not None else self.plan.filter)
        return DefiniteError("the transforms fail", place=error_location(self.plan.source.name, ", ".join(names)), hint="please report it")

    def _failed(self, block: ChangeBlock, output: OutputColumn | None, row: int, reason: str, text: str) -> DefiniteError:
        name, plan = ("filter" if output is None else f"computed.{output.column.name}"), self.plan
        inputs = plan.filter_inputs if output is None else output.inputs
        shown = {one.source for one in plan.outputs if one.is_plain}
        if not shown.issuperset(inputs):
            # DuckDB quotes values, which must stay hidden.
            reason = "it fails at a value that is not shown here"
        version = int(block.version[row].as_py())
        _, file, offset = unpack_version(version)
        where = f"log file {file}, offset {offset}"
        key = _key_text(block, row) if shown.issuperset(plan.source.row_key) else ""
        place = (
            f"{error_location(plan.source.name, name)}, row {key}, {where}" if key else f"{error_location(plan.source.name, name)}, {where}"
        )
        # All rows of a snapshot have the same position.
        event = "" if block.op[row].as_py() == Op.SNAPSHOT else row_place(version)
        return DefiniteError(f"{text or (output.expression if output else '')}: {reason}", place=place, hint=_TRY, event=event)


def _failure(text: str, columns: pa.Table) -> str:
    """Return DuckDB's message if the expression fails at these rows; empty if it does not fail."""
    try:
        duckdb_engine.evaluate([text], columns)
    except duckdb_engine.EvaluationError as error:
        return str(error) or "it fails"
    return ""


def _key_text(block: ChangeBlock, row: int) -> str:
    """Return the row's key as text, for an error message."""
    found = []
    for name in block.schema.row_key:
        column, value = block.schema.column(name), block.images.column(name).slice(row, 1)
        how = None if column.form in (ValueForm.TEXT, ValueForm.JSON) else text_functions(column)
        shown = value[0].as_py() if how is None else how[0](value)[0].as_py()
        found.append(f"{name}={shown.hex() if isinstance(shown, bytes) else shown}")
    return ", ".join(found)
