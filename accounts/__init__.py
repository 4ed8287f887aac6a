"""Who is asking: users, organizations, teams, members, keys."""
