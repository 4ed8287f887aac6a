"""Every failure of an upstream, at every moment, on every surface: `tests/proxy/matrix.py` says what must come of each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.tenants import Tenant
from tests.proxy import matrix
from tests.proxy.conftest import Gateway
from tests.proxy.matrix import KINDS, Cell, Moment
from tests.proxy.matrix_page import markdown
from tests.proxy.matrix_runs import Matrix
from tests.proxy.matrix_script import BEAT_SECONDS
from tests.upstream import ScriptedUpstream

ROOT = Path(__file__).resolve().parents[2]
CELLS = tuple(matrix.cells())
STATUSES = (Moment.STATUS, Moment.UPGRADE)
EVENTS = tuple(moment for moment in matrix.REFUSALS if moment not in STATUSES)
CUTS = tuple(moment for moment in matrix.BREAKS if moment not in (*matrix.SILENCES, Moment.CONNECT))


@pytest.fixture
def gateway_settings() -> dict[str, Any]:
    return {"HEARTBEAT_SECONDS": BEAT_SECONDS, "UPSTREAM_ALLOWED_NETWORKS": ["127.0.0.0/8"]}


@pytest.fixture
async def cells_of(gateway: Gateway, tenant: Callable[..., Any], upstream: ScriptedUpstream) -> Callable[..., Any]:
    """Runs those cells; fails with every one that differs."""
    one: Tenant = await tenant(account="none")

    async def run(cells: list[Cell]) -> None:
        assert cells
        running = Matrix(gateway, upstream, one)
        differing = await running.run(cells)
        await running.close()
        assert not differing, f"{len(differing)} differ:\n" + "\n".join(differing)

    return run


def chosen(moments: tuple[Moment, ...], kind: str | None = None) -> list[Cell]:
    return [cell for cell in CELLS if cell.moment in moments and kind in (None, cell.surface.kind)]


@pytest.mark.parametrize("kind", KINDS)
async def test_refusals_by_status(cells_of: Callable[..., Any], kind: str) -> None:
    """N30, N32, N35, N8: by their body, else by their status."""
    await cells_of(chosen(STATUSES, kind))


@pytest.mark.parametrize("kind", KINDS)
async def test_refusals_inside_answers(cells_of: Callable[..., Any], kind: str) -> None:
    """N33: as the first event, after the preamble, after a heartbeat, after output, or as the body of a 200."""
    await cells_of(chosen(EVENTS, kind))


async def test_answers_that_are_cut(cells_of: Callable[..., Any]) -> None:
    """N20: at every moment; nothing is sent twice."""
    await cells_of(chosen(CUTS))


class TestSilence:
    @pytest.fixture
    def gateway_settings(self) -> dict[str, Any]:
        return {
            "UPSTREAM_HEADER_TIMEOUT_SECONDS": 1.0,
            "UPSTREAM_IDLE_TIMEOUT_SECONDS": 1.0,
            "UPSTREAM_ALLOWED_NETWORKS": ["127.0.0.0/8"],
        }

    async def test_upstreams_that_fall_silent(self, cells_of: Callable[..., Any]) -> None:
        """N22: before the head, after it, after the preamble, after output."""
        await cells_of(chosen(matrix.SILENCES))


async def test_upstreams_that_cannot_be_reached(cells_of: Callable[..., Any]) -> None:
    await cells_of(chosen((Moment.CONNECT,)))


def test_every_cell_is_run_once() -> None:
    run = [cell for moments in (STATUSES, EVENTS, CUTS, matrix.SILENCES, (Moment.CONNECT,)) for cell in chosen(moments)]
    assert len(run) == len(set(map(id, run))) == len(CELLS)
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_what_operators_read_is_the_table() -> None:
    assert (ROOT / "docs/failures.md").read_text(encoding="utf-8") == markdown()
