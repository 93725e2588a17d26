"""The reading of a Dockerfile for a build without Docker: variables, users and directories of its steps, and forms that are not known."""

from __future__ import annotations

import pytest

from testkit.machine.dockerfile import DockerfileError, Step, parse_dockerfile

TEXT = """
FROM debian:slim
RUN one \\
 # a comment between the lines of a step
 && two
ARG CPU=small
ENV PATH=/opt/bin:/bin KIND=$CPU EMPTY=
USER 5:6
WORKDIR /home
COPY a b /to/
RUN three
VOLUME /home
EXPOSE 80
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=1s CMD ["true", "CMD"]
ENTRYPOINT ["init"]
CMD ["run"]
"""


def test_steps_have_the_settings_of_the_instructions_before_them() -> None:
    image = parse_dockerfile(TEXT)
    settings = {"PATH": "/opt/bin:/bin", "KIND": "small", "EMPTY": ""}
    assert [(step.keyword, " ".join(step.text.split())) for step in image.steps] == [
        ("RUN", "one && two"),
        ("WORKDIR", "/home"),
        ("COPY", "a b /to/"),
        ("RUN", "three"),
    ]
    assert image.steps[0].environment == {}
    assert image.steps[-1] == Step("RUN", "three", {"CPU": "small", **settings}, "5:6", "/home")
    assert (image.environment, image.user, image.directory, image.volume, image.port) == (settings, "5:6", "/home", "/home", 80)
    assert (image.health_command, image.entry_point, image.command) == (("true", "CMD"), ("init",), ("run",))


@pytest.mark.parametrize("line", ["ADD a /b", "RUN --mount=type=cache,target=/x y", "RUN <<END", "FROM debian:slim AS second", "SHELL [1]"])
def test_a_form_that_is_not_known_is_an_error(line: str) -> None:
    with pytest.raises(DockerfileError, match="not known here"):
        parse_dockerfile(f"FROM debian:slim\n{line}\n")
