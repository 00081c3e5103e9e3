"""Transitional."""

from volvox.runs.provenance import processor, provenance, revision, versions

__all__ = ["processor", "provenance", "revision", "versions"]
