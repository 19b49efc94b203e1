"""Requests and answers of the publishing API."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ccl_bench.leaderboard.publishing.tokens import DEFAULT_DAYS, MAX_DAYS


class Verification(BaseModel):
    """The state of recomputing."""

    state: Literal["none", "waiting", "running", "verified", "different", "failed"] = Field(
        description="none: there are no traces; failed: there were no numbers to compare with."
    )
    message: str = Field(description="Recomputed numbers, differences, or the reason of a failure.")


class Receipt(BaseModel):
    """The state of a bundle."""

    id: str = Field(description="SHA-256 of the bundle.")
    name: str = Field(description="Name of the run's directory.")
    submitter: str
    state: Literal["quarantined", "self_reported", "verified", "withdrawn", "superseded"]
    verification: Verification
    page: str = Field(description="Path of its page on this server.")


class Acceptance(Receipt):
    """The answer to an uploaded bundle."""

    is_new: bool = Field(description="False if the same bundle existed already; then nothing changes.")
    replaced: list[str] = Field(description="Runs of the same recording that it replaces.")
    remarks: list[str] = Field(description="Remarks for its submitter.")


class Terms(BaseModel):
    """Conditions of this server for uploads."""

    version: str = Field(description="Of ccl-bench.")
    metrics: dict[str, int] = Field(description="Metric to revision of its definition.")
    archive_bytes: int = Field(description="Largest archive.")
    quarantine: Literal["first", "all", "none"] = Field(description="Whose bundles wait for a maintainer.")
    trace_storage: list[str] = Field(description="Prefixes of addresses that are read for recomputing.")
    submitter: str | None = Field(description="Holder of the token; null without one.")
    role: Literal["submitter", "maintainer", "admin"] | None


class Note(BaseModel):
    """A reason."""

    model_config = ConfigDict(extra="forbid")

    note: str = Field(default="", max_length=500, description="Shown in the run's history.")


class TokenWanted(BaseModel):
    """A token to create."""

    model_config = ConfigDict(extra="forbid")

    submitter: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
    role: Literal["submitter", "maintainer", "admin"] = "submitter"
    days: int = Field(default=DEFAULT_DAYS, ge=1, le=MAX_DAYS, description="Validity.")


class TokenAnswer(BaseModel):
    """A token as it is listed."""

    id: str
    submitter: str
    role: Literal["submitter", "maintainer", "admin"]
    created_at: str
    expires_at: str
    revoked_at: str | None


class TokenMade(BaseModel):
    """A new token."""

    token: str = Field(description="Shown once; only its hash is stored.")
