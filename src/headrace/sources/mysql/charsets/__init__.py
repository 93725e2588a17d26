"""Character sets of MySQL and MariaDB."""
