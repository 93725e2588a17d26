"""Log formats and the pipe that a log line belongs to."""
