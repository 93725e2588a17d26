"""The MySQL and MariaDB source: binary log and snapshots to change blocks."""
