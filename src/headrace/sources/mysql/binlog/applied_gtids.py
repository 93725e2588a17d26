"""Skips groups that were already applied: those in a GTID set that is ahead of the start of reading.

A GTID set is no single position in a server's log, because transactions of several servers or domains have a different order in each log.
So reading starts where the set is surely not behind, and every group in the set is marked here before the planner sees it. A marked group
yields no split and no statement, and adds nothing to the set. A prepared XA transaction keeps its rows, because its commit may come later.
A commit that was already applied becomes a rollback: it ends the transaction without effect.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.server.gtid import GtidSet, MariaDBGtidPosition

_PLAIN: Final = np.array([scan.DATA, scan.STATEMENT, scan.ROLLED_BACK])


class AppliedGroups:
    """Marks groups in log order."""

    def __init__(self, applied: GtidSet) -> None:
        self._applied = applied
        self._passed: set[int] = set()

    def mark(self, groups: npt.NDArray[np.int64], place: str) -> None:
        """Mark, in place, the groups that were already applied."""
        gtids = groups[:, scan.GTID]
        held = self._applied.holds(gtids)
        if isinstance(self._applied, MariaDBGtidPosition):
            self._check_order(gtids, held, place)
        kinds = groups[:, scan.KIND]
        plain = np.isin(kinds, _PLAIN)
        if (plain & (gtids[:, 2] == 0)).any():
            raise DefiniteError(
                "a transaction in the source's log has no GTID, so it is unknown whether it was already applied",
                place=place,
                hint="start at a FILE:OFFSET; to start over, remove the state directory and the target tables",
            )
        groups[held & (kinds == scan.XA_COMMIT), scan.KIND] = scan.XA_ROLLBACK
        groups[held & plain, scan.ROWS] = 0
        groups[held & plain, scan.KIND] = scan.SKIPPED
        groups[held, scan.GTID] = 0

    def _check_order(self, gtids: npt.NDArray[np.int64], held: npt.NDArray[np.bool_], place: str) -> None:
        """Raise if a domain's sequence numbers decrease: they show what was applied only while they rise along the log."""
        named = gtids[:, 2] != 0
        for domain in np.unique(gtids[named, 0]).tolist():
            ours = held[named & (gtids[:, 0] == domain)]
            late = np.flatnonzero(~ours)
            if ours.any() and (domain in self._passed or (len(late) and ours[late[0] :].any())):
                raise DefiniteError(
                    f"the GTIDs of domain {domain} go back in the source's log, so they do not show what was already applied",
                    place=place,
                    hint="set gtid_strict_mode = ON on all servers; to start over, remove the state directory and the target tables",
                )
            if len(late):
                self._passed.add(domain)
