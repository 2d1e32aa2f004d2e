"""The model directory: written whole or not at all, read as it is or refused."""
