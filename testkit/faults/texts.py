"""Damage to text: statements, GTID sets, lines of JSON; drawn from a seed."""

from __future__ import annotations

import random

_PIECES = (
    "'",
    '"',
    "`",
    "/*",
    "*/",
    "/*!",
    "--",
    "#",
    "(",
    ")",
    ",",
    ";",
    ".",
    "\\",
    "\0",
    " ",
    "\n",
    "🚰",
    "é",
    "0",
    "-",
    "NULL",
    "AS",
    "{",
    "]",
)


def damage_text(text: str, draw: random.Random) -> str:
    """Make one to three changes: remove, double, swap or insert characters, or cut the end."""
    for _ in range(draw.randint(1, 3)):
        at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        match draw.randrange(7):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + text[min(at + draw.randint(1, 8), len(text)) :]
            case 2:
                text = text[:at] + draw.choice(_PIECES) + text[at:]
            case 3:
                text = text[:at] + draw.choice(_PIECES) + text[at + 1 :]
            case 4:
                text = text[:end] + text[at:end] + text[end:]
            case 5:
                words = text.split(" ")
                draw.shuffle(words) if draw.random() < 0.2 else words.pop(draw.randrange(len(words)))
                text = " ".join(words)
            case _:
                text = text[:at] + chr(draw.choice((draw.randrange(128), draw.randrange(0xD800)))) + text[at + 1 :]
    return text
