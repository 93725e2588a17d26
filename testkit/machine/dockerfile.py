"""Reads a Dockerfile of one stage: its instructions, with variables replaced, for a run without Docker.

Only the forms that `deploy/docker/Dockerfile` has are known; any other is an error, so that no instruction is ignored silently.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_KEYWORDS = frozenset(
    {"FROM", "ARG", "ENV", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
)


class DockerfileError(Exception):
    """A Dockerfile has a form that is not known here."""


@dataclass(frozen=True, slots=True)
class Step:
    """A `RUN`, `COPY` or `WORKDIR`, with the environment, user and directory that it has."""

    keyword: str
    text: str
    environment: Mapping[str, str]
    """The variables of `ENV` and, for `RUN`, those of `ARG`."""
    user: str
    directory: str


@dataclass
class Dockerfile:
    """The steps of a build, and the settings of the image."""

    base: str = ""
    steps: list[Step] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    directory: str = "/"
    volume: str = ""
    port: int = 0
    stop_signal: str = ""
    health_command: tuple[str, ...] = ()
    entry_point: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def parse_dockerfile(text: str) -> Dockerfile:
    """Return the build of a Dockerfile; raise `DockerfileError` at a form that is not known."""
    image, arguments = Dockerfile(), dict[str, str]()
    for keyword, value in _instructions(text):
        known = {**arguments, **image.environment}
        match keyword:
            case "FROM" if not image.base:
                image.base = value
            case "ARG":
                name, _, default = value.partition("=")
                arguments[name] = default
            case "ENV":
                pairs = [word.partition("=") for word in shlex.split(value)]
                image.environment |= {name: _expand(one, known) for name, _, one in pairs}
            case "RUN" | "COPY":
                environment = known if keyword == "RUN" else image.environment
                image.steps.append(Step(keyword, value, dict(environment), image.user, image.directory))
            case "WORKDIR":
                image.directory = value
                image.steps.append(Step(keyword, value, dict(image.environment), image.user, value))
            case "USER":
                image.user = value
            case "VOLUME":
                image.volume = value
            case "EXPOSE":
                image.port = int(value)
            case "STOPSIGNAL":
                image.stop_signal = value
            case "HEALTHCHECK":
                image.health_command = _words(value[value.index("CMD") + 3 :])
            case "ENTRYPOINT":
                image.entry_point = _words(value)
            case "CMD":
                image.command = _words(value)
            case _:
                raise DockerfileError(f"{keyword} {value}: more than one stage is not known here")
    return image


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        keyword, _, value = line.strip().partition(" ")
        if keyword and (keyword not in _KEYWORDS or value.startswith(("--mount", "<<"))):
            raise DockerfileError(f"{line}: this form is not known here")
        if keyword:
            yield keyword, value.strip()


def _expand(value: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables[found[1] or found[2]], value)


def _words(value: str) -> tuple[str, ...]:
    words = json.loads(value)
    return tuple(str(word) for word in words)
