"""The page of evidence."""
