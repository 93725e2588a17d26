"""Copies of tables that are asked to end."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from headrace.pipes.copying import Copier, Interrupted
from headrace.retry import Waits, own_waits


def test_a_copy_that_is_asked_to_end_waits_for_its_chunks_but_not_for_ever() -> None:
    """A chunk may wait for a slot of Spark's that another pipe's task holds, whose server is away: nobody tells this pipe of it."""
    asked, nothing, pipe = [False], None, Waits()
    unused: list[Any] = [nothing] * 9
    stop = Copier(*unused, stopping=lambda: asked[0])._stopper()
    with own_waits(pipe), mock.patch("headrace.pipes.copying.time.monotonic") as clock:
        clock.return_value = 100.0
        stop()
        asked[0] = True
        for now in (200.0, 229.0):
            clock.return_value = now
            stop()
        clock.return_value = 231.0
        with pytest.raises(Interrupted):
            stop()


def test_a_copy_whose_server_is_away_ends_at_once() -> None:
    unused: list[Any] = [None] * 9
    stop, pipe = Copier(*unused, stopping=lambda: True)._stopper(), Waits()
    with own_waits(pipe):
        stop()
        pipe.note("the source does not answer")
        with pytest.raises(Interrupted):
            stop()
