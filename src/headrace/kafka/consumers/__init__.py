"""Consumers of topics with mypipe's messages or Debezium's events: `consume`, `changes`, `blocks` and `tail`."""
