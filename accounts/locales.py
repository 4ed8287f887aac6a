"""How each language of the pages writes numbers, days and spans. Whoever is not on a page (API, mail, logs) writes English."""

from dataclasses import dataclass

from django.utils.translation import get_language


@dataclass(frozen=True, slots=True)
class Locale:
    """Marks and names of one language; days and months begin with Monday and January."""

    decimal: str
    group: str
    """Between thousands. No-break, so that a number stays on its line."""
    weekdays: tuple[str, ...]
    months: tuple[str, ...]
    """Short, as they stand behind a day's number."""
    long_months: tuple[str, ...]
    months_alone: tuple[str, ...]
    """As a month is called without a day, to be chosen."""
    months_above: tuple[str, ...]
    """The same, short, above a column."""
    day: str
    """Of `weekday`, `day`, `month` (its name) and `number` (its number)."""
    day_and_year: str
    long_day: str
    month_and_year: str
    days_unit: str
    hours: str
    minutes: str
    seconds: str
    milliseconds: str

    def whole(self, number: int) -> str:
        """A whole number with its thousands set apart; a minus is the caller's."""
        return f"{number:,}".replace(",", self.group)


ENGLISH = Locale(
    decimal=".",
    group=",",
    weekdays=("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    months=("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    long_months=(
        "January", "February", "March", "April", "May", "June",
        "July", "August", "September", "October", "November", "December",
    ),
    months_alone=(
        "January", "February", "March", "April", "May", "June",
        "July", "August", "September", "October", "November", "December",
    ),
    months_above=("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    day="{weekday} {day} {month}",
    day_and_year="{weekday} {day} {month} {year}",
    long_day="{day} {month} {year}",
    month_and_year="{month} {year}",
    days_unit="d",
    hours="h",
    minutes="min",
    seconds="s",
    milliseconds="ms",
)  # fmt: skip
RUSSIAN = Locale(
    decimal=",",
    group="\N{NO-BREAK SPACE}",
    weekdays=("пн", "вт", "ср", "чт", "пт", "сб", "вс"),
    months=("янв", "фев", "мар", "апр", "мая", "июн", "июл", "авг", "сен", "окт", "ноя", "дек"),
    long_months=(
        "января", "февраля", "марта", "апреля", "мая", "июня",
        "июля", "августа", "сентября", "октября", "ноября", "декабря",
    ),
    months_alone=(
        "Январь", "Февраль", "Март", "Апрель", "Май", "Июнь",
        "Июль", "Август", "Сентябрь", "Октябрь", "Ноябрь", "Декабрь",
    ),
    months_above=("янв", "фев", "март", "апр", "май", "июнь", "июль", "авг", "сен", "окт", "ноя", "дек"),
    day="{weekday} {day} {month}",
    day_and_year="{weekday} {day} {month} {year}",
    long_day="{day} {month} {year}",
    month_and_year="{month} {year}",
    days_unit="д",
    hours="ч",
    minutes="мин",
    seconds="с",
    milliseconds="мс",
)  # fmt: skip
VIETNAMESE = Locale(
    decimal=",",
    group=".",
    weekdays=("T2", "T3", "T4", "T5", "T6", "T7", "CN"),
    months=tuple(str(number) for number in range(1, 13)),
    long_months=tuple(f"tháng {number}" for number in range(1, 13)),
    months_alone=tuple(f"Tháng {number}" for number in range(1, 13)),
    months_above=tuple(f"Thg {number}" for number in range(1, 13)),
    day="{weekday} {day}/{number}",
    day_and_year="{weekday} {day}/{number}/{year}",
    long_day="{day} {month}, {year}",
    month_and_year="{month}/{year}",
    days_unit="ngày",
    hours="giờ",
    minutes="phút",
    seconds="giây",
    milliseconds="ms",
)
LOCALES = {"en": ENGLISH, "ru": RUSSIAN, "vi": VIETNAMESE}


def current() -> Locale:
    """Of the language that is active; English where none is, or none of ours."""
    return LOCALES.get((get_language() or "en")[:2], ENGLISH)
