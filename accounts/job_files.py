"""The files that jobs make, in the data folder: written beside their place, and put there whole. Nobody else reads them.

Web processes and workers on several machines need one data folder between them (docs/exports.md).
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.utils.translation import gettext as _

from accounts.errors import JobBroken

PIECE_BYTES = 256 * 1024


def folder() -> Path:
    return Path(settings.WEIR_VAR) / "exports"


def path(uuid: UUID) -> Path:
    return folder() / str(uuid)


class Out:
    """A job's file while it is written. `rows` is the writer's to count; nothing is in its place before `place`."""

    def __init__(self, uuid: UUID, attempt: int) -> None:
        self.bytes = 0
        self._digest = hashlib.sha256()
        self._final = path(uuid)
        # Who was given up for dead and still writes has another file than who took the job up after it.
        self._part = self._final.with_name(f"{uuid}.{attempt}.part")
        self._file: int | None = None

    def write(self, piece: bytes) -> None:
        """Raises JobBroken, in words, when the disk does not take it."""
        try:
            if self._file is None:
                self._final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise JobBroken(_said(error)) from error
        self._digest.update(piece)
        self.bytes += len(piece)

    @property
    def is_begun(self) -> bool:
        return self._file is not None

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def place(self) -> None:
        """On the disk and under its name, in one step. Raises JobBroken."""
        assert self._file is not None
        try:
            os.fsync(self._file)
            os.replace(self._part, self._final)
        except OSError as error:
            raise JobBroken(_said(error)) from error

    def close(self) -> None:
        """Ends the writing; what was not placed is gone."""
        if self._file is None:
            return
        os.close(self._file)
        self._file = None
        self._part.unlink(missing_ok=True)


def remove(uuid: UUID) -> None:
    """The file, and what unfinished attempts have left of it."""
    path(uuid).unlink(missing_ok=True)
    if folder().is_dir():
        for part in folder().glob(f"{uuid}.*.part"):
            part.unlink(missing_ok=True)


def names() -> Iterator[tuple[Path, str]]:
    """Every file there is, with the uuid in its name."""
    if folder().is_dir():
        for one in folder().iterdir():
            yield one, one.name.split(".")[0]


def _said(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _("The server’s disk is full, so the file could not be written. Tell your operator, and start it again after that.")
    return _("The server could not write the file into its data folder. Tell your operator, and start it again after that.")
