"""What a period grants and costs by the days on which each plan's terms were in force. Pure; days are the tenant's calendar days.

A day of 23 or 25 hours is one day. The day of a change belongs to the new terms. Credits are rounded once per period, money once
per line, half up.
"""

from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

CENT = Decimal("0.01")


def money(amount: Decimal) -> Decimal:
    """With the currency's two digits, half up."""
    return amount.quantize(CENT, ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Segment:
    """A plan's terms from the local day `day` on: `quota` micro-credits and `price` of a whole period, as they were then.

    `price` None: no price is set, nothing is charged by itself. `overage_price`: of one credit on invoice.
    """

    day: date
    plan: str
    name: str
    quota: int
    price: Decimal | None
    overage_price: Decimal | None
    currency: str


@dataclass(frozen=True, slots=True)
class PriceLine:
    """A plan's price for `days` of the period's `of_days`; `amount` is rounded."""

    segment: Segment
    days: int
    of_days: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Terms:
    """All terms of one period. `until`: the first local day that they no longer hold, where the period was ended early.

    `carried`: what the period before drew beyond its own days (a change of the reset period in its middle); it counts here, so that
    no change grants anything twice.
    """

    first_day: date
    days: int
    segments: tuple[Segment, ...]
    until: date | None = None
    carried: int = 0

    @property
    def newest(self) -> Segment:
        return self.segments[-1]

    @property
    def entitlement(self) -> int:
        """Micro-credits that the days grant; below 0 where more was carried over than that."""
        total = sum(segment.quota * days for segment, days in self.spans())
        return (2 * total + self.days) // (2 * self.days) - self.carried

    def quota(self, used: int) -> int:
        """What the period's row grants: never below 0, nor below what was used by then."""
        return max(self.entitlement, used, 0)

    def spans(self) -> list[tuple[Segment, int]]:
        """Each segment with its number of days; without those that held on no day."""
        end = self.first_day + timedelta(days=self.days)
        if self.until is not None:
            end = min(end, self.until)
        edges = [*(segment.day for segment in self.segments[1:]), end]
        spans = [(segment, (edge - segment.day).days) for segment, edge in zip(self.segments, edges, strict=True)]
        return [(segment, days) for segment, days in spans if days > 0]

    def prices(self) -> list[PriceLine]:
        """The lines of the plans that have a price."""
        return [
            PriceLine(segment, days, self.days, money(segment.price * days / self.days))
            for segment, days in self.spans()
            if segment.price is not None
        ]

    def price(self) -> Decimal:
        return sum((line.amount for line in self.prices()), Decimal(0)).quantize(CENT)

    def left_on(self, day: date) -> int:
        """Days of the period from `day` on, that day included."""
        return min(self.days, max(0, (self.first_day + timedelta(days=self.days) - day).days))

    def changed(self, segment: Segment) -> "Terms":
        """With `segment` from its day on. Of two changes on one day the later holds."""
        segment = replace(segment, day=min(max(segment.day, self.first_day), self.first_day + timedelta(days=self.days - 1)))
        return replace(self, segments=(*(one for one in self.segments if one.day < segment.day), segment))

    def renewed(self, segment: Segment) -> "Terms":
        """On `segment` for the whole period, as if it had begun so."""
        return replace(self, segments=(replace(segment, day=self.first_day),))

    def ended(self, day: date) -> "Terms":
        """Ended early: `day` is the first that is not part of it."""
        return replace(self, until=max(self.first_day, day))


def to_json(terms: Terms) -> dict[str, Any]:
    """Money as decimal text."""
    return {
        "first_day": terms.first_day.isoformat(),
        "days": terms.days,
        "until": terms.until and terms.until.isoformat(),
        "carried": terms.carried,
        "segments": [
            {
                "day": one.day.isoformat(),
                "plan": one.plan,
                "name": one.name,
                "quota": one.quota,
                "price": None if one.price is None else str(one.price),
                "overage_price": None if one.overage_price is None else str(one.overage_price),
                "currency": one.currency,
            }
            for one in terms.segments
        ],
    }


def from_json(data: dict[str, Any]) -> Terms:
    """The reverse of `to_json`."""
    return Terms(
        first_day=date.fromisoformat(data["first_day"]),
        days=data["days"],
        until=None if data["until"] is None else date.fromisoformat(data["until"]),
        carried=data["carried"],
        segments=tuple(
            Segment(
                day=date.fromisoformat(one["day"]),
                plan=one["plan"],
                name=one["name"],
                quota=one["quota"],
                price=None if one["price"] is None else Decimal(one["price"]),
                overage_price=None if one["overage_price"] is None else Decimal(one["overage_price"]),
                currency=one["currency"],
            )
            for one in data["segments"]
        ),
    )
