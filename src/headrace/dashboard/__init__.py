"""The page that shows a running process, its figures for Prometheus, and the HTTP server for both and for control."""
