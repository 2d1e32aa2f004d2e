"""A page that can be read, and a table for the terminal, made of rows of evidence."""
