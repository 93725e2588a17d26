"""The MySQL and MariaDB source: binary log and snapshots to change blocks."""

from headrace.sources.mysql.kernel_cache import use_kernel_cache

use_kernel_cache()
