"""Creates, changes and deletes pipes and alert rules of a pipe file, for the dashboard."""

from headrace.editor.draft import AlertDraft, PipeDraft, parse_alert_draft, parse_draft
from headrace.editor.editor import Editor, EditRefused

__all__ = ["AlertDraft", "EditRefused", "Editor", "PipeDraft", "parse_alert_draft", "parse_draft"]
