"""Table schemas as of each event: capture, DDL effects and schema history."""
