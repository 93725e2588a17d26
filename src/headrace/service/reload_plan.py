"""Plans a reload: compares the pipes, settings and alert rules that run with those that the file has now.

Invariant: a pipe whose source, sink and settings are the same keeps its runner, so a reload neither stops nor delays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from headrace.config.configuration import Configuration, ProcessSettings
from headrace.config.document import ALERTS, HEADRACE
from headrace.service.pipe_runner import PipeRunner
from headrace.service.status import ReloadResult

_APPLIED: Final = ("address", "edit", "retry_seconds")
"""Settings of the process that a reload applies."""


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """What differs outside of pipes: names such as `[headrace] address` and `[alerts.chat]`."""

    applied: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The runners after a reload."""

    runners: Mapping[str, PipeRunner]
    """All of them, in the order of the file; those of unchanged pipes are the running ones."""
    ended: tuple[PipeRunner, ...]
    """The runners of removed and changed pipes."""
    started: tuple[PipeRunner, ...]
    """The runners of new and changed pipes."""
    result: ReloadResult


def plan_reload(running: Mapping[str, PipeRunner], wanted: Mapping[str, PipeRunner], settings: SettingChanges) -> ReloadPlan:
    """Compare runners by their names; `wanted` holds a runner that was not started for each pipe of the file."""
    unchanged = {name: running[name] for name, one in wanted.items() if name in running and _is_same(running[name], one)}
    restarted = tuple(name for name in wanted if name in running and name not in unchanged)
    result = ReloadResult(
        tuple(name for name in wanted if name not in running),
        tuple(name for name in running if name not in wanted),
        restarted,
        tuple(unchanged),
        settings.needs_restart,
        settings.applied,
    )
    return ReloadPlan(
        {**wanted, **unchanged},
        tuple(runner for name, runner in running.items() if name not in unchanged),
        tuple(runner for name, runner in wanted.items() if name not in unchanged),
        result,
    )


def _is_same(running: PipeRunner, wanted: PipeRunner) -> bool:
    return (running.spec, running.shown, running.is_enabled) == (wanted.spec, wanted.shown, wanted.is_enabled)


def apply_settings(running: Configuration, wanted: Configuration) -> tuple[Configuration, SettingChanges]:
    """Return the configuration of the process after the reload, and what it changes outside of pipes."""
    changed = [one.name for one in fields(ProcessSettings) if getattr(running.process, one.name) != getattr(wanted.process, one.name)]
    now, before = ({rule.name: rule for rule in one.alerts} for one in (wanted, running))
    rules = [name for name in {**now, **before} if now.get(name) != before.get(name)]
    settings = SettingChanges(
        (*(f"[{HEADRACE}] {name}" for name in changed if name in _APPLIED), *(f"[{ALERTS}.{name}]" for name in rules)),
        tuple(f"[{HEADRACE}] {name}" for name in changed if name not in _APPLIED),
    )
    applied = {name: getattr(wanted.process, name) for name in _APPLIED}
    return replace(running, process=replace(running.process, **applied), pipes=wanted.pipes, alerts=wanted.alerts), settings
