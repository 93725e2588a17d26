"""A faithful writer of ScyllaDB's log: statements in, the log rows that ScyllaDB would write out."""
