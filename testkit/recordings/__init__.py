"""Recorded logs and events of real servers, and the programs that record them."""
