"""HTTP/1.1 for the embedded server and the dashboard: sockets, requests, responses, and checks of `Host`, `Origin` and secrets."""
