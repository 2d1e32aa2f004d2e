"""How sure a recovered token is, and what is passed over."""
