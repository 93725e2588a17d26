"""Commands on pipes: `check`, `dry-run`, `retry` and `tail`."""
