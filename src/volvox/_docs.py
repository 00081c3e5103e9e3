"""Documentation of the fields of NamedTuples, which Python calls "Alias for field number 0"."""

import inspect
import re
from types import ModuleType


def document_fields(module: ModuleType) -> None:
    """Gives each field of a module's NamedTuples what the class docstring's Attributes section says of it."""
    for value in vars(module).values():
        names = getattr(value, "_fields", ())
        if inspect.isclass(value) and issubclass(value, tuple) and names:
            _, _, section = (inspect.getdoc(value) or "").partition("Attributes:\n")
            for name, text in re.findall(r"^  (\w+): (.*(?:\n {4}.*)*)", section, flags=re.MULTILINE):
                if name in names:
                    getattr(value, name).__doc__ = re.sub(r"\s+", " ", text)
