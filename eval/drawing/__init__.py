"""Tables, charts and markup of any numbers."""
