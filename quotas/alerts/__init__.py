"""Alerts: what is found (`rules`), told once (`telling`), to whom (`audience`), in which words (`wording`), how (`delivery`)."""
