"""A MySQL or MariaDB server: connections, GTIDs, positions and the identity of its log."""
