"""Where changes go. Every sink states and keeps the port in `base`: idempotent, order-free, visible when `write` returns."""
