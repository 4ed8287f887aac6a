"""System checks name what is wrong with the settings, and never show it."""

from typing import Any

import pytest

from config import checks


def ids(**changed: Any) -> set[str | None]:
    from django.test import override_settings

    with override_settings(**changed):
        return {problem.id for problem in checks.check_settings(None)}


def test_the_settings_of_this_run_are_in_order() -> None:
    assert ids() == set()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"ENCRYPTION_KEYS": {"k1": "not a fernet key"}}, "weir.E001"),
        ({"KEY_PEPPERS": {"p1": "short"}}, "weir.E002"),
        ({"SECRET_KEY": "x" * 40, "KEY_PEPPERS": {"p1": "x" * 40}}, "weir.E003"),
        ({"SECRET_KEY": "short"}, "weir.E004"),
        ({"HOLD_RENEW_SECONDS": 2.0, "HOLD_DEADLINE_SECONDS": 3.0}, "weir.E005"),
    ],
)
def test_a_wrong_setting_is_found(changed: dict[str, Any], expected: str) -> None:
    assert ids(**changed) == {expected}


def test_a_problem_names_the_key_and_not_its_value() -> None:
    from django.test import override_settings

    with override_settings(ENCRYPTION_KEYS={"k7": "hunter2secret"}):
        [problem] = checks.check_settings(None)
    assert "k7" in problem.msg
    assert "hunter2secret" not in f"{problem.msg} {problem.hint}"
