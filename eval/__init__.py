"""Questions asked of model directories; every answer is rows of evidence."""
