"""The rules for Prometheus: promtool takes them, they fire when they should, and a real Prometheus fires them on our metrics."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from headrace.dashboard import metrics
from headrace.dashboard.server import serve
from headrace.service.status import PipeStage
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.machine.wait_condition import wait_until
from testkit.servers.prometheus import PrivatePrometheus, run_promtool

RULES = Path(str(files("headrace.dashboard") / "prometheus-rules.yml"))
WAIT_S = 60.0


def of_pipe(name: str, **labels: str) -> str:
    inner = {"instance": "h:8088", "job": "headrace", "pipe": "shop", "group": "shop", **labels}
    return f"{name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in inner.items())}}}"


def test_promtool_takes_the_rules_and_they_name_existing_metrics() -> None:
    assert "SUCCESS: 6 rules found" in run_promtool("check", "rules", str(RULES))
    named = set(re.findall(r"headrace_[a-z_]+", RULES.read_text()))
    assert named
    assert named <= set(metrics.names())


def test_when_rules_fire(tmp_path: Path) -> None:
    """One sample a minute; `+0xN` repeats a value."""
    info = "headrace_info{instance='h:8088', job='headrace'}"
    series = {
        info: "1+0x30",
        of_pipe("headrace_pipe_failed"): "0+0x4 1+0x4 0+0x20",
        of_pipe("headrace_pipe_lag_seconds"): "61+0x3 60 61+0x9 10+0x15",
        # Another pipe lags, and is paused or has failed.
        of_pipe("headrace_pipe_lag_seconds", pipe="held"): "4000+0x30",
        of_pipe("headrace_pipe_stage", pipe="held", stage="paused"): "1+0x30",
        of_pipe("headrace_pipe_stage", pipe="held", stage="failed"): "0+0x30",
        of_pipe("headrace_pipe_stage", stage="starting"): "0 1 0+0x28",
        of_pipe("headrace_pipe_stage", stage="retrying"): "0 0 1+0x9 0+0x18",
        of_pipe("headrace_pipe_stage", stage="waiting"): "0+0x11 1+0x3 0+0x14",
        of_pipe("headrace_pipe_dead_letters"): "0+0x20 3+0x9",
        of_pipe("headrace_table_verify", table="shop.a", verdict="different"): "0+0x20 1+0x9",
        of_pipe("headrace_table_verify", table="shop.a", verdict="equal"): "1+0x20 0+0x9",
    }
    times = {
        "HeadracePipeFailed": {4: 0, 5: 1, 9: 1, 10: 0},
        # Changes between the stages do not restart it.
        "HeadracePipeAway": {5: 0, 6: 1, 14: 1, 16: 0},
        "HeadraceLag": {5: 0, 9: 0, 10: 1, 14: 1, 15: 0},
        "HeadraceDeadLetters": {20: 0, 21: 1},
        "HeadraceDifferences": {20: 0, 21: 1},
        "HeadraceDown": {10: 0},
    }
    cases = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [expected(name)] * count}
        for name, minutes in times.items()
        for minute, count in minutes.items()
    ]
    gone = [{"eval_time": "1m", "alertname": "HeadraceDown", "exp_alerts": []}]
    gone += [{"eval_time": "3m", "alertname": "HeadraceDown", "exp_alerts": [{"exp_labels": {"severity": "critical"}}]}]  # type: ignore[list-item]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    tests = [
        {
            "interval": "1m",
            "input_series": inputs,
            "alert_rule_test": cases,
        },
        {"interval": "1m", "input_series": [], "alert_rule_test": [_with_annotations(case) for case in gone]},
    ]
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    assert "SUCCESS" in run_promtool("test", "rules", str(tmp_path / "tests.yml"))


def expected(name: str) -> dict[str, object]:
    """Return labels and annotations of an alert of the pipe `shop`."""
    labels = {"severity": "critical" if name in ("HeadracePipeFailed", "HeadraceDifferences") else "warning"}
    labels |= {"instance": "h:8088", "job": "headrace", "pipe": "shop", "group": "shop"}
    labels |= {"table": "shop.a", "verdict": "different"} if name == "HeadraceDifferences" else {}
    summary, remedy = {
        "HeadracePipeFailed": (
            "shop halts at an error",
            "headrace status shows the error and its remedy; after the repair: headrace resume shop",
        ),
        "HeadracePipeAway": (
            "shop has not run for 5 minutes: it starts, waits for a peer or for a retry",
            "headrace status shows what it waits for",
        ),
        "HeadraceLag": ("shop is 1m 1s behind its source", "see the dashboard: a server that is away, a snapshot, a burst of changes"),
        "HeadraceDeadLetters": ("3 rows of shop wait in headrace.errors", "headrace retry SINK --list shows the reasons"),
        "HeadraceDifferences": (
            "verification found differences in shop.a of shop",
            "headrace verify SOURCE SINK --repair repairs the rows",
        ),
        "HeadraceDown": ("no Headrace process answers", "start headrace run; its log has the reason"),
    }[name]
    return {"exp_labels": labels, "exp_annotations": {"summary": summary, "remedy": remedy}}


def _with_annotations(case: dict[str, object]) -> dict[str, object]:
    alerts = case["exp_alerts"]
    assert isinstance(alerts, list)
    annotations = expected("HeadraceDown")["exp_annotations"]
    return {**case, "exp_alerts": [{**one, "exp_annotations": annotations} for one in alerts]}


def test_a_real_prometheus_fires_them(tmp_path: Path) -> None:
    control = FakeControl()
    with (
        serve(control, "127.0.0.1:0", TOKEN) as server,
        PrivatePrometheus(tmp_path / "prometheus", str(server.address), RULES) as found,
    ):
        at_once = {
            ("HeadracePipeFailed", "firing", "events"),
            ("HeadraceDeadLetters", "firing", "shop"),
            ("HeadraceDifferences", "firing", "shop"),
        }
        # These must last for minutes.
        later = {("HeadracePipeAway", "pending", name) for name in ("billing", "metrics", "profiles")}
        later |= {("HeadraceLag", "pending", name) for name in ("billing", "metrics")}
        wait_until(lambda: at_once | later <= found.alerts(), WAIT_S, 0.2, found.alerts)
        quiet = {"events", "archive", "reports", "orders/east", "old"}
        assert not [one for one in found.alerts() if one[2] in quiet and one[0] != "HeadracePipeFailed"]
        control.set("events", stage=PipeStage.STREAMING, error=None)
        wait_until(lambda: "HeadracePipeFailed" not in {name for name, _, _ in found.alerts()}, WAIT_S, 0.2, found.alerts)
