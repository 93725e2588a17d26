"""Edits the alert rules of a running process's file: lists them, tries a draft, writes it and reloads.

Invariant: a test alert is sent with the very text that would be written, and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.alerts.alert import EVENTS
from headrace.alerts.receivers import send_test
from headrace.alerts.rules import find_rules
from headrace.config.alert_sections import read_receivers
from headrace.config.document import ALERTS, PIPES
from headrace.editor.alert_changes import absent, alert_changes, shown_rule, shown_values
from headrace.editor.draft import AlertDraft
from headrace.editor.file_changes import Edit, FileChanges
from headrace.editor.file_edit import edit_text, remove_section
from headrace.editor.pipe_file import PipeFile, read_pipe_file
from headrace.editor.secret_files import NewSecrets


@dataclass(frozen=True, slots=True)
class AlertEditor:
    """Thread-safe."""

    changes: FileChanges

    def list_rules(self) -> dict[str, Any]:
        """Return the rules of the file as drafts, and what a new rule can choose from."""
        file = read_pipe_file(self.changes.path)
        document = file.document()
        rules = document.content.get(ALERTS, {})
        return {
            "file": str(file.path),
            "digest": file.digest,
            "rules": [shown_rule(document, name, stored) for name, stored in rules.items() if isinstance(stored, dict)],
            "defaults": shown_values({}),
            "events": list(EVENTS),
            "pipes": list(document.content.get(PIPES, {})),
        }

    def plan(self, draft: AlertDraft) -> dict[str, Any]:
        """Return what writing the draft would change in the file."""
        return self.changes.plan((ALERTS, draft.name), _edit(draft))

    def save(self, draft: AlertDraft, digest: str) -> dict[str, Any]:
        """Write the draft into the file, and reload."""
        return self.changes.save((ALERTS, draft.name), digest, _edit(draft))

    def delete(self, name: str, digest: str) -> dict[str, Any]:
        """Remove a rule from the file, and reload."""
        return self.changes.save((ALERTS, name), digest, lambda file, _: _without_rule(file, name))

    def test(self, draft: AlertDraft) -> dict[str, Any]:
        """Send a test alert as the draft says, and return what the receiver answered; raise its error if it did not take it."""
        rules, link = read_receivers(self.changes.draft(_edit(draft)).document())
        [rule] = find_rules(rules, draft.name)
        return {"receiver": rule.shown, "answer": send_test(rule, link)}


def _edit(draft: AlertDraft) -> Edit:
    """Return the edit that puts a draft into the file."""

    def edit(file: PipeFile, secrets: NewSecrets) -> str:
        return edit_text(file.text, alert_changes(file.document(), draft, secrets))

    return edit


def _without_rule(file: PipeFile, name: str) -> str:
    if name not in file.document().content.get(ALERTS, {}):
        raise absent((ALERTS, name))
    return remove_section(file.text, (ALERTS, name))
