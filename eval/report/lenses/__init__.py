"""What each lens found, as figures: a module for each."""
