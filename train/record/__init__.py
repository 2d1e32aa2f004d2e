"""What a run records and says while it trains: figures, evaluations, models."""
