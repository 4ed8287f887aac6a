"""How processes are started: embedded servers, generated secrets, the supervisor, and how commands find a running stack."""
