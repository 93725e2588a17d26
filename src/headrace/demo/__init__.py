"""The demonstration: a private database, a small shop, a live workload, replicated and verified."""
