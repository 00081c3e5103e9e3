"""Temporary, until the other parts have their final names."""

import sys

from volvox import _docs
from volvox import checkpoint as checkpoint

for _name, _module in list(sys.modules.items()):
    if _name.startswith("volvox."):
        _docs.document_fields(_module)
