"""A page that can be read, and a table for the terminal, made of rows of evidence."""

from eval.report.page import render_page, write_page
from eval.report.tables import summary_table, terminal_table

__all__ = ["render_page", "summary_table", "terminal_table", "write_page"]
