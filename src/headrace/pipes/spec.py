"""What a pipe is made of: its addresses and settings, and the pipe that was opened from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.settings.pipe_keys import TopicKeys
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import UserSettings

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.base import Pipe


@dataclass(frozen=True, slots=True)
class PipeSpec:
    """One source, one sink, and the settings of the pipe between them. Addresses contain secrets: never print one."""

    source: str = field(repr=False)
    sink: str = field(repr=False)
    settings: PipeSettings
    chosen: UserSettings = field(default_factory=UserSettings)
    topics: TopicKeys = field(default_factory=TopicKeys)

    @property
    def name(self) -> str:
        return self.settings.pipe_name


@dataclass(frozen=True, slots=True)
class BuiltPipe:
    """A pipe that is ready to run, with its sink open."""

    pipe: Pipe
    is_lost: Callable[[], bool]
    """Whether its sink is gone for good: an embedded server that has exited."""
