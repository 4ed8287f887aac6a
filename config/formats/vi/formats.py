"""As `accounts.locales` writes them, in place of "14:20 Ngày 18 tháng 11 năm 2026"."""

DATE_FORMAT = "j/n/Y"
DATETIME_FORMAT = "j/n/Y, H:i"
MONTH_DAY_FORMAT = "j/n"
