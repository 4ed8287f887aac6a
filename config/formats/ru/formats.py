"""Short enough for a column; a day of a month is declined: 30 ноября."""

DATE_FORMAT = "d.m.Y"
DATETIME_FORMAT = "d.m.Y, H:i"
MONTH_DAY_FORMAT = "j E"
