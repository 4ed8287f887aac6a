"""What was used, what it costs, who owes what: plans, rates, pricing, the usage log, subscriptions."""
