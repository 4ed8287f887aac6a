"""Where data live, and which folders the servers' own user can reach."""

import hashlib
import os
import pwd
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def mark(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:10]


def default_var() -> Path:
    """For root a folder that `nobody` can reach; otherwise `var/` in the project, or in the home folder if that is read-only."""
    if os.geteuid() == 0:
        return Path("/var/lib") / f"weir-{mark(PROJECT)}"
    if os.access(PROJECT, os.W_OK):
        return PROJECT / "var"
    return Path.home() / ".local" / "share" / f"weir-{mark(PROJECT)}"


def var_for(command: str) -> Path:
    """The data folder of `demo` or `up`: WEIR_VAR (or --var), else one of its own below the default."""
    given = os.environ.get("WEIR_VAR")
    return Path(given).expanduser().absolute() if given else default_var() / command


def running_candidates() -> list[Path]:
    """Where a running stack's runtime file may lie, for a command that looks for one."""
    given = os.environ.get("WEIR_VAR")
    if given:
        return [Path(given).expanduser().absolute()]
    return [default_var() / command for command in ("demo", "up")]


def make_private(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def can_enter(path: Path, uid: int) -> bool:
    """Whether a user who is in none of the folder's groups may walk to `path`: every parent lets others pass."""
    for part in (path, *path.parents):
        try:
            status = part.stat()
        except FileNotFoundError:
            continue
        owner_may = status.st_uid == uid and status.st_mode & 0o100
        if not owner_may and not status.st_mode & 0o001:
            return False
    return True


def server_user() -> pwd.struct_passwd | None:
    """Who PostgreSQL runs as: `nobody` under root (it refuses root), else None for the user who calls."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def service_folder(var: Path) -> Path:
    """A folder for the servers' data that their user can reach: `var` itself, or one in /var/lib named after it."""
    user = server_user()
    if user is None or can_enter(make_private(var), user.pw_uid):
        return var
    return make_private(Path("/var/lib") / f"weir-{mark(var)}")
