"""`CREATE DATABASE … ENGINE = MaterializeMySQL(…)` as a background pipe: parsed, started, shown and dropped."""
