"""Exported policies (transitional)."""

from volvox.exported import SUFFIXES, is_exported, load_exported
from volvox.exporting import export

__all__ = ["SUFFIXES", "export", "is_exported", "load_exported"]
