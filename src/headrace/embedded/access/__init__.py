"""Access control of the embedded server: credentials, privileges, sandbox, statement guard."""
