"""Deprecated: import `capture` from `headrace.sources.scylla.capture`."""

import warnings

from headrace.sources.scylla.capture.captured_session import CapturedSession, capture

__all__ = ["CapturedSession", "capture"]

warnings.warn("import capture from headrace.sources.scylla.capture", DeprecationWarning, stacklevel=2)
