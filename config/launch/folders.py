"""What a launched process finds on this machine: where data live, which folders the servers' user can reach, no proxy to itself."""

import hashlib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def mark(path: Path) -> str:
    """A short name for a path, the same as in `manage.py`."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:10]


def default_var() -> Path:
    """For root a folder that `nobody` can reach; otherwise `var/` in the project, or in the home folder if that is read-only."""
    if os.geteuid() == 0:
        return Path("/var/lib") / f"weir-{mark(PROJECT)}"
    if os.access(PROJECT, os.W_OK):
        return PROJECT / "var"
    return Path.home() / ".local" / "share" / f"weir-{mark(PROJECT)}"


def given_var() -> Path | None:
    """The data folder that --var or WEIR_VAR names."""
    given = os.environ.get("WEIR_VAR")
    return Path(given).expanduser().absolute() if given else None


def var_for(command: str) -> Path:
    """The data folder of `demo` or `up`: the one given, else one of its own below the default."""
    return given_var() or default_var() / command


def running_candidates() -> list[Path]:
    """Where a running stack's runtime file may lie, for a command that looks for one."""
    given = given_var()
    return [given] if given else [default_var() / command for command in ("demo", "up")]


def make(path: Path) -> Path:
    """Makes a folder that only this user may list; under root the servers' user may pass through it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
        path.chmod(0o711 if os.geteuid() == 0 else 0o700)
    return path


def can_enter(path: Path, uid: int) -> bool:
    """Whether a user who is in none of the folders' groups may walk to `path`: every parent lets others pass."""
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
    if user is None or can_enter(make(var), user.pw_uid):
        return var
    return make(Path("/var/lib") / f"weir-{mark(var)}")


def loopback_without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which HTTP clients that are told of a proxy still reach this machine directly."""
    asked = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    hosts = [host for host in asked.split(",") if host]
    direct = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost", "::1"]))
    return {"NO_PROXY": direct, "no_proxy": direct}
