"""Access control of the embedded server: credentials, origin check, privileges, sandbox, statement guard."""
