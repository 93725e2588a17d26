"""`CREATE DATABASE … ENGINE = MaterializeMySQL(…)` as a pipe: read, kept running in the background, shown and dropped."""
