"""The header of an Avro message: a zero byte, and the registry's schema id in four (or eight) bytes, big-endian."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kafka.avro.wire_header_kernel import read_ids

ID_BYTES: Final = 4


def schema_ids(messages: pa.BinaryArray, id_bytes: int = ID_BYTES) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the schema id of each message, and which messages have one; NULL has none."""
    ids = np.full(len(messages), -1, np.int64)
    validity, offsets, data = messages.buffers()
    if len(messages) and data is not None:
        read_ids(data.address, offsets.address, validity.address if validity else 0, messages.offset, id_bytes, ids)
    return ids, ids >= 0
