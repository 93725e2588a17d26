"""Alerts of a running process: rules, detection, delivery."""
