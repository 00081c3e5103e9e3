"""Writing files so that nobody ever sees half of one."""

import os
import tempfile
from pathlib import Path


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a whole file atomically and to disk: a reader, or a kill at any moment, finds the old one or the new.

    Args:
      path: of the file; its directory exists.
      content: text (written as UTF-8) or bytes.
    """
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes private files
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
