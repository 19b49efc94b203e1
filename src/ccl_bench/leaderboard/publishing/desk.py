"""Looking after a leaderboard from its own data directory, as its operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.publishing import audit, curating
from ccl_bench.leaderboard.publishing.receipts import in_state, receipt
from ccl_bench.leaderboard.publishing.settings import settings_of
from ccl_bench.leaderboard.publishing.settling import settle_all
from ccl_bench.leaderboard.publishing.tokens import Caller, Role

if TYPE_CHECKING:
    from ccl_bench.leaderboard.publishing.models import Receipt
    from ccl_bench.leaderboard.store import Store

OPERATOR = Caller("operator", Role.ADMIN)
"""Whoever may write into the data directory."""


@dataclass(frozen=True, slots=True)
class Desk:
    """A data directory; it does what `client.Leaderboard` asks a server for."""

    store: Store

    def withdraw(self, run: str, note: str) -> Receipt:
        """Take a run back."""
        settle_all(self.store, settings_of(self.store.data))
        curating.withdraw(self.store, OPERATOR, run, note)
        return self._noted("withdrawn", run)

    def approve(self, run: str, note: str) -> Receipt:
        """List a run that waits."""
        settings = settings_of(self.store.data)
        settle_all(self.store, settings)
        curating.approve(self.store, settings, OPERATOR, run, note)
        return self._noted("approved", run)

    def waiting(self) -> list[Receipt]:
        """Return the bundles in quarantine."""
        settle_all(self.store, settings_of(self.store.data))
        return in_state(self.store, "quarantined")

    def _noted(self, event: str, run: str) -> Receipt:
        audit.note(self.store.data, event, run=run, submitter=OPERATOR.submitter)
        return receipt(self.store, run)
