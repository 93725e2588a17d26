"""An embedded server as on a kernel without Landlock: only the engine's grants and the server's own rules restrict SQL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from headrace.embedded import __main__ as child
from headrace.embedded import server
from headrace.embedded.process import EmbeddedServer


class UnconfinedServer(EmbeddedServer):
    """An embedded server whose process Landlock does not restrict."""

    _program: ClassVar = (str(Path(__file__).resolve()),)


def main() -> int:
    server.confine = lambda _directory: False  # type: ignore[attr-defined]
    return child.main()


if __name__ == "__main__":
    sys.exit(main())
