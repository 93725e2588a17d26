# Sourced by MySQL's image at the first start: makes the account that Headrace reads with.
docker_process_sql <<SQL
CREATE USER 'headrace'@'%' IDENTIFIED BY '$(cat /run/secrets/source_password)';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'headrace'@'%';
SQL
