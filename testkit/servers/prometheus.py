"""A private Prometheus, from Debian's package, which is not installed: that would start a system-wide server.

apt downloads the package and checks it against the signed index; only its programs are unpacked, into the cache.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from headrace.demo.private_process import PrivateProcess, find_free_port
from headrace.errors import HeadraceError
from testkit.servers.cache import cache_dir, hold_lock
from testkit.servers.mariadb_plugins import unpack_package


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`: the installed one, or the package's, fetched on the first call."""
    installed = shutil.which(name)
    if installed is not None:
        return installed
    target = cache_dir() / "prometheus"
    with hold_lock("prometheus"):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-prometheus-", dir=cache_dir()) as scratch:
                (unpack_package("prometheus", Path(scratch)) / "usr/bin").rename(target)
    return str(target / name)


def run_promtool(*arguments: str) -> str:
    """Run promtool; return what it printed, and fail if it did not succeed."""
    done = subprocess.run([program("promtool"), *arguments], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class PrivatePrometheus(PrivateProcess):
    """One server, which scrapes `HOST:PORT` twice a second and evaluates the rules as often."""

    log_name = "prometheus.log"
    poll_s = 0.1

    def __init__(self, directory: Path, target: str, rules: Path) -> None:
        super().__init__("Prometheus", directory)
        self._target, self._rules = target, rules
        self.port = find_free_port()

    def alerts(self) -> set[tuple[str, str, str]]:
        """Return name, state and pipe of each alert that fires or is pending."""
        found = self._get("/api/v1/alerts")["data"]["alerts"]
        return {(one["labels"]["alertname"], one["state"], one["labels"].get("pipe", "")) for one in found}

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
            return json.load(answer)

    def _prepare(self) -> None:
        configuration = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(self._rules)],
            "scrape_configs": [{"job_name": "headrace", "static_configs": [{"targets": [self._target]}]}],
        }
        # JSON is YAML.
        (self.directory / "prometheus.yml").write_text(json.dumps(configuration))

    def _command(self) -> list[str]:
        where = [f"--storage.tsdb.path={self.directory / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        return [program("prometheus"), f"--config.file={self.directory / 'prometheus.yml'}", *where, "--log.level=warn"]

    def _answers(self) -> bool:
        try:
            return bool(self._get("/api/v1/targets")["data"]["activeTargets"])
        except OSError:
            return False


def main() -> int:
    """Fill the cache before the tests run."""
    try:
        print(f"Prometheus is in {Path(program('prometheus')).parent}")
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
