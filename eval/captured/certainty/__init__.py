"""How sure a recovered token is."""
