"""Parsing that all server addresses share: query settings and TLS."""
