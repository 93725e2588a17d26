"""Statements of the log to schema changes: tokens, grammar, column types, and what each statement does to the tables that are known."""
