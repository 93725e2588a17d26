"""Creates, changes and deletes pipes of a pipe file, for the dashboard."""

from headrace.editor.draft import PipeDraft, parse_draft
from headrace.editor.editor import Editor, EditRefused

__all__ = ["EditRefused", "Editor", "PipeDraft", "parse_draft"]
