"""Fault injection: damaged input, hostile servers, kills, signals, clocks."""
