"""Commands on pipes: `check`, `ddl`, `retry` and `tail`."""
