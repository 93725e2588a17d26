"""`headrace demo --shop`: the tutorial's source."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.demo.private_process import find_free_port


def test_check_of_the_shop_has_no_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = find_free_port()
    command = [sys.executable, "-m", "headrace", "demo", "--shop", "--port", str(port), "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shop:
        try:
            assert shop.stdout is not None
            assert any("for yourself" in line for line in shop.stdout)
            assert main(["check", f"mysql://repl:secret@127.0.0.1:{port}/shop"]) == 0
        finally:
            shop.send_signal(signal.SIGINT)
    assert "check: 0 errors, 0 warnings" in capsys.readouterr().out
