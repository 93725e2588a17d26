"""The pipe that replicates MySQL and MariaDB: start-up, snapshot, stream, schema changes, resync, failover."""
