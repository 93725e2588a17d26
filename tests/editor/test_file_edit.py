"""Changes of a pipe file leave every other byte as it is."""

from __future__ import annotations

import difflib
import tomllib

import pytest

from headrace.editor.file_edit import edit_text, remove_section, section_text
from headrace.errors import DefiniteError

FILE = """\
# Pipes of the shop.
[headrace]
state = "s"   # on the fast disk

[sources.shop]
url = "mysql://u:p@h/db" # the primary
tables = [
  "a.*",  # one
  "b.*",
]

# about pipe a
[pipes.a]
source = "shop"
sink = "w"

# about pipe b
[pipes.b]
source = "shop"   # keep me
sink = "w"
[pipes.b.tables."shop.x"]
drop = ["a"]

[sinks.w]
url = "chdb:w"

[pipes.c]
source='shop'
sink='w'
"""


def changed(text: str, *changes: tuple[tuple[str, ...], object]) -> tuple[list[str], list[str]]:
    """Return the lines that a change removes and adds."""
    lines = list(difflib.ndiff(text.splitlines(), edit_text(text, changes).splitlines()))
    return [line[2:] for line in lines if line.startswith("- ")], [line[2:] for line in lines if line.startswith("+ ")]


def test_changed_keys_keep_comments_and_lines() -> None:
    assert changed(FILE, (("pipes", "b", "source"), "other")) == (
        ['source = "shop"   # keep me'],
        ['source = "other"   # keep me'],
    )
    assert changed(FILE, (("sources", "shop", "tables"), ["b.*", "c.*"])) == (['  "a.*",  # one'], ['  "c.*",'])
    assert changed(
        FILE, (("pipes", "b", "tables", "shop.x", "drop"), None), (("pipes", "b", "tables", "shop.x", "mask"), {"m": "email"})
    ) == (
        ['drop = ["a"]'],
        ['mask = {m = "email"}'],
    )
    assert edit_text(FILE, [(("pipes", "a", "sink"), "w")]) == FILE


def test_new_keys_stand_in_their_section() -> None:
    made = edit_text(FILE, [(("pipes", "a", "include"), ["x.*"]), (("sources", "shop", "password"), 'q"$${')])
    assert 'sink = "w"\ninclude = ["x.*"]\n\n# about pipe b\n[pipes.b]\n' in made
    assert ']\npassword = "q\\"$${"\n\n# about pipe a\n[pipes.a]\n' in made


def test_new_sections_follow_at_the_end() -> None:
    made = edit_text(FILE, [(("pipes", "new", "source"), "shop"), (("pipes", "c", "tables", "g.*", "drop"), ["k"])])
    assert made.startswith(FILE)
    assert tomllib.loads(made)["pipes"]["new"] == {"source": "shop"}
    assert tomllib.loads(made)["pipes"]["c"] == {"source": "shop", "sink": "w", "tables": {"g.*": {"drop": ["k"]}}}
    hostile = 'a"]\n[headrace]\nlisten = "0.0.0.0:1'
    made = edit_text(
        FILE, [(("pipes", "new", "include"), [hostile]), (("pipes", "a", "tables", f"x.{hostile}", "mask"), {hostile: "email"})]
    )
    assert tomllib.loads(made)["headrace"] == {"state": "s"}
    assert tomllib.loads(made)["pipes"]["new"]["include"] == [hostile]


def test_a_removed_section_goes_with_its_own_comment() -> None:
    without_a = remove_section(FILE, ("pipes", "a"))
    assert without_a == FILE.replace('# about pipe a\n[pipes.a]\nsource = "shop"\nsink = "w"\n\n', "")
    without_b = remove_section(FILE, ("pipes", "b"))
    assert "keep me" not in without_b
    assert "shop.x" not in without_b
    assert "# about pipe a" in without_b
    without_c = remove_section(FILE, ("pipes", "c"))
    assert tomllib.loads(without_c)["pipes"].keys() == {"a", "b"}
    assert FILE.startswith(without_c.rstrip())
    assert tomllib.loads(remove_section("[pipes]\na = {sink = 'x'}\nb = {sink = 'y'}\n", ("pipes", "a"))) == {"pipes": {"b": {"sink": "y"}}}


def test_the_first_and_the_last_section_of_a_kind() -> None:
    made = edit_text(FILE, [(("alerts", "chat", "url"), "https://h/x"), (("alerts", "chat", "events"), ["failed"])])
    assert made == f'{FILE}\n[alerts.chat]\nurl = "https://h/x"\nevents = ["failed"]\n'
    assert remove_section(made, ("alerts", "chat")).rstrip() == FILE.rstrip()
    below = f"[alerts]\n[alerts.chat]\nurl = 'x'\n{FILE}"
    assert remove_section(below, ("alerts", "chat")) == f"[alerts]\n{FILE}"


def test_the_text_of_a_section() -> None:
    assert (
        section_text(FILE, ("pipes", "b"))
        == '[pipes.b]\nsource = "shop"   # keep me\nsink = "w"\n[pipes.b.tables."shop.x"]\ndrop = ["a"]\n'
    )


@pytest.mark.parametrize("text", ["pipes = {a = {source = 'x'}}\n", "[pipes.a]\nsource = 'x'\ntables = {'g.*' = {drop = ['k']}}\n"])
def test_a_form_that_does_not_permit_a_change(text: str) -> None:
    change = (("pipes", "n", "sink"), "y") if text.startswith("pipes") else (("pipes", "a", "tables", "q.*", "drop"), ["z"])
    with pytest.raises(DefiniteError, match="does not permit") as caught:
        edit_text(text, [change])
    assert "by hand" in caught.value.hint
