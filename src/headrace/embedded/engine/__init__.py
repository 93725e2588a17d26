"""The chDB engine, its directory lock, configuration, errors and statement scanner."""
