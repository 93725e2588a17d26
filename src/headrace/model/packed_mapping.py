"""A mapping that tasks carry as bytes: pickled once by the driver, and unpickled once by each process that runs its tasks.

Every batch sends its tasks the definitions of all tables, which rarely change. Keys and values must be immutable: tasks share them.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST_UNPACKED: Final = 16
_unpacked: OrderedDict[bytes, dict[Any, Any]] = OrderedDict()
_lock = threading.Lock()


class PackedMapping(Mapping[K, V]):
    __slots__ = ("_content", "_digest", "_packed")

    def __init__(self, content: Mapping[K, V]) -> None:
        self._content: dict[K, V] | None = dict(content)
        self._packed = self._digest = b""

    @property
    def _mapping(self) -> dict[K, V]:
        if self._content is None:
            self._content = _unpack(self._digest, self._packed)
        return self._content

    def __getitem__(self, key: K) -> V:
        return self._mapping[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __reduce__(self) -> tuple[Callable[[bytes, bytes], PackedMapping[K, V]], tuple[bytes, bytes]]:
        if not self._packed:
            plain = pickle.dumps(self._content, pickle.HIGHEST_PROTOCOL)
            self._packed, self._digest = zlib.compress(plain, 1), hashlib.blake2b(plain, digest_size=16).digest()
        return _received, (self._digest, self._packed)


def _received(digest: bytes, packed: bytes) -> PackedMapping[Any, Any]:
    made: PackedMapping[Any, Any] = PackedMapping({})
    made._content, made._digest, made._packed = None, digest, packed
    return made


def _unpack(digest: bytes, packed: bytes) -> dict[Any, Any]:
    with _lock:
        found = _unpacked.get(digest)
        if found is not None:
            _unpacked.move_to_end(digest)
            return found
    content: dict[Any, Any] = pickle.loads(zlib.decompress(packed))
    with _lock:
        _unpacked[digest] = content
        if len(_unpacked) > _MOST_UNPACKED:
            _unpacked.popitem(last=False)
    return content
