"""The HTTP server of a running process: dashboard page, Prometheus metrics and control API."""
