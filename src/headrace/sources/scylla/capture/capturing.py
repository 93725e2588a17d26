"""Deprecated: import `Capture` from `headrace.sources.scylla.capture`."""

import warnings

from headrace.sources.scylla.capture.statement_capture import Capture, log_block, wall_clock

__all__ = ["Capture", "log_block", "wall_clock"]

warnings.warn("import Capture from headrace.sources.scylla.capture", DeprecationWarning, stacklevel=2)
